"""From logits to tokens: adjusting, filtering, drawing and reporting log-probabilities."""
