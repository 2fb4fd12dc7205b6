"""What a model is to the planner: its layers, weights and number formats, from its config.json."""
