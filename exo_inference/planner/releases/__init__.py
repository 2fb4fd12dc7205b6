"""What a release of an engine can serve at all: which models, on which GPUs, in which quantized formats. Tables, and who asks them."""
