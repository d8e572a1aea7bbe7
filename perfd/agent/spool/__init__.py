"""The buffer on disk that keeps batches until the aggregator has acknowledged them."""
