"""What a metric is: series, the exposition format, and the catalog of every metric that perfd exports."""
