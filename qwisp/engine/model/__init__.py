"""The arithmetic of one step: attention, experts, recurrent state, kernels."""
