"""PyTorch/XLA: its set-up."""
