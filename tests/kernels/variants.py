"""The reference with other kernels than its own lines, which `llmcalc verify --memory` runs too."""

from llmcalc.verify.variants import *  # noqa: F403
