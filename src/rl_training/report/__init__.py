"""Many runs on one page: reader, statistics, charts."""
