"""The endpoints of other protocols: AG-UI, OpenAI Chat Completions and OpenAI Responses."""
