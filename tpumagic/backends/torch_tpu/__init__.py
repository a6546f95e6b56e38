"""TorchTPU: its set-up."""
