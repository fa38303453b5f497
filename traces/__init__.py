"""What a training job did: values, files, formats, checks. Knows nothing of networks or of replaying."""
