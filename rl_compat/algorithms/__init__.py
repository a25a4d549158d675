"""Pure tensor functions: masking, logprobs, KL, advantages and losses."""
