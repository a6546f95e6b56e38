"""TensorFlow: its set-up."""
