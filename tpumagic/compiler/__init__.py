"""The TPU compiler without a TPU: targets, a worker process that asks it, a cache of its answers."""
