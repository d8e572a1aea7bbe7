"""What SGLang and mini-sglang say: metrics, information over HTTP, logs."""
