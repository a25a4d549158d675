"""The Python API: `train` for a whole run, `Session` and the models for programs of their own."""
