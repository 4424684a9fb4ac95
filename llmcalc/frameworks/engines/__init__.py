"""What serving engines share: the record that each fills, flags and versions, and the memory of one rank's model."""
