"""CUDA kernels for decoding, compiled at run time."""
