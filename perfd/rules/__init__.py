"""Rules files in the language of Prometheus, and the engine that evaluates them."""
