"""A name space kept in memory, made durable by a replicated edit log; see README.md."""
