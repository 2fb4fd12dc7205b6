"""The core of a model that embeds or scores: whole texts in steps, nothing cached."""
