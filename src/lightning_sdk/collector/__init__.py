"""The server: takes records in (our stream and OTLP), stores them, and serves them to whoever reads."""
