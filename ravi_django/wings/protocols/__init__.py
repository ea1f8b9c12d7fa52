"""The endpoints of other protocols: AG-UI, OpenAI Chat Completions and OpenAI Responses.

Owns no table. It must survive a client that repeats a request with its key: there is one run. Read `openai.py` first.
"""
