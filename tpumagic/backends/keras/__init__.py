"""Keras: its set-up. What it computes is seen where its backend is observed."""
