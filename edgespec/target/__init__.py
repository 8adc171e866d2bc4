"""The target model, through llama.cpp's low-level API."""
