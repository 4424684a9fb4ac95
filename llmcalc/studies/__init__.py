"""Questions over one model or several: how they compare, which shapes cost the same, what rules of thumb say."""
