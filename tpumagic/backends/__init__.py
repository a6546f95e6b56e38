"""One package per framework; each yields events and programs and nothing else."""
