"""Every vLLM command in a folder of others, judged by the vLLM of the image that it names."""
