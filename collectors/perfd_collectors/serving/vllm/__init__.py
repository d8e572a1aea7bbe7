"""What vLLM says: metrics, information over HTTP, logs."""
