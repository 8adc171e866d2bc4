"""`edgespec serve`: a local server that speaks OpenAI's API. Needs the extra [server]: starlette and uvicorn."""
