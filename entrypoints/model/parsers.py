"""Which of vLLM's parsers read the tool calls and the reasoning of a model's answers. Data.

A rule names the architectures, and where these are not enough the marks: texts that the model's chat template has if it
asks for this format. A repository's name decides nothing.

Sources: `docs` are pages of vLLM 0.33's documentation, `recipes` files of github.com/vllm-project/recipes of August
2026, `examples` and `vllm` files of vLLM's repository. The marks are those of the published templates, and of vLLM's
parsers.
"""
# ruff: noqa: E501, RUF001 -- a table; DeepSeek's templates have wide bars

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """One format of answers."""

    family: str
    architectures: tuple[str, ...]
    marks: tuple[str, ...]
    """Texts of the chat template, all of which it must have; empty if the architecture is enough."""
    parsers: tuple[str, ...]
    """Names in vLLM, the preferred one first: older versions lack some."""
    source: str
    template: str = ""
    """The chat template of vLLM's examples/ that the source adds, and that vLLM's wheel lacks; empty for the model's own."""


_LLAMA = "LlamaForCausalLM"
_V3 = ("DeepseekV3ForCausalLM",)
_V4 = ("DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration")
_K25, _K3 = ("KimiK25ForConditionalGeneration",), ("KimiK3ForConditionalGeneration",)
_GLM = ("Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM", "Glm4vMoeForConditionalGeneration", "GlmMoeDsaForCausalLM")
_GRANITE = ("GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeHybridForCausalLM")
_GEMMA4 = ("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM")
_LFM2 = ("Lfm2ForCausalLM", "Lfm2MoeForCausalLM")
_M3 = ("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration")
_MISTRAL = (
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Mistral3ForConditionalGeneration",
    "MistralLarge3ForCausalLM",
    "PixtralForConditionalGeneration",
)
_QWEN2, _QWEN3 = ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM"), ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
_QWEN3_5 = (
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)
_NEXT = "Qwen3NextForCausalLM"
_INKLING = ("InklingForCausalLM", "InklingForConditionalGeneration")
_MIMO = ("MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM")
_LING3 = ("BailingMoeV3ForCausalLM", "BailingMoeV3VLForConditionalGeneration")
_GLIMMER = ("MuseGlimmerForCausalLM", "MuseGlimmerForConditionalGeneration")
_STEP = ("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration")
_S1 = ("InternS1ForConditionalGeneration", "InternS1ProForConditionalGeneration")
_CALLS, _THOUGHTS = "docs/features/tool_calling.md", "docs/features/reasoning_outputs.md"
_KIMI_TOOLS, _NO_THOUGHT, _PROMPTED = "tool_declare", "<｜Assistant｜></think>", r"assistant\n<think>"

# fmt: off
TOOLS = (
    Rule("Kimi-K2", _V3, (_KIMI_TOOLS,), ("kimi_k2",), _CALLS),
    Rule("Kimi-K2.5", _K25, (), ("kimi_k2",), "recipes moonshotai/Kimi-K2.5"),
    Rule("Kimi-K3", _K3, (), ("kimi_k3",), "recipes moonshotai/Kimi-K3"),
    Rule("DeepSeek-V3.1", _V3, (_NO_THOUGHT,), ("deepseek_v31",), _CALLS, "tool_chat_template_deepseekv31.jinja"),
    Rule("DeepSeek-R1", _V3, ("<｜tool▁calls▁begin｜>", "</think>"), ("deepseek_v3",), _CALLS, "tool_chat_template_deepseekr1.jinja"),
    Rule("DeepSeek-V3", _V3, ("<｜tool▁calls▁begin｜>",), ("deepseek_v3",), _CALLS, "tool_chat_template_deepseekv3.jinja"),
    Rule("DeepSeek-V3.2", ("DeepseekV32ForCausalLM",), (), ("deepseek_v32",), "recipes deepseek-ai/DeepSeek-V3.2"),
    Rule("DeepSeek-V4", _V4, (), ("deepseek_v4",), "recipes deepseek-ai/DeepSeek-V4-Pro"),
    Rule("gpt-oss", ("GptOssForCausalLM",), (), ("openai",), _CALLS),
    Rule("Llama 4", ("Llama4ForConditionalGeneration", "Llama4ForCausalLM"), (), ("llama4_pythonic",), _CALLS, "tool_chat_template_llama4_pythonic.jinja"),
    Rule("GLM-4.7, GLM-5", _GLM, ("{function-name}<arg_key>",), ("glm47",), _CALLS),
    Rule("GLM-4.5, GLM-4.6", _GLM, ("<arg_key>",), ("glm45",), _CALLS),
    Rule("MiniMax-M2", ("MiniMaxM2ForCausalLM",), (), ("minimax_m2",), "recipes MiniMaxAI/MiniMax-M2"),
    Rule("MiniMax-M3", _M3, (), ("minimax_m3",), "recipes MiniMaxAI/MiniMax-M3"),
    Rule("Qwen3-Coder", ("Qwen3MoeForCausalLM",), ("<function=",), ("qwen3_xml", "qwen3_coder"), _CALLS),
    Rule("Qwen3.5, Qwen3.6, Qwen3-Coder-Next", (_NEXT, *_QWEN3_5), ("<function=",), ("qwen3_coder",), "recipes Qwen/Qwen3.5-27B"),
    Rule("Nemotron 3", ("NemotronHForCausalLM",), ("<function=",), ("qwen3_coder",), "recipes nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"),
    Rule("Hermes, Qwen2.5, Qwen3", (_LLAMA, "MistralForCausalLM", *_QWEN2, *_QWEN3, _NEXT), ("<tool_call>", "<function-name>"), ("hermes",), f"{_CALLS}, recipes Qwen/Qwen3-32B"),
    Rule("Granite 4", _GRANITE, ("<tool_call>",), ("granite4",), _CALLS),
    Rule("Granite 3", _GRANITE, ("<|tool_call|>",), ("granite",), _CALLS),
    Rule("Llama 3.1 to 3.3", (_LLAMA, "MllamaForConditionalGeneration"), ("Environment: ipython",), ("llama3_json",), _CALLS, "tool_chat_template_llama3.1_json.jinja"),
    Rule("Mistral", _MISTRAL, ("[TOOL_CALLS]",), ("mistral",), _CALLS),
    Rule("Gemma 4", _GEMMA4, ("<|tool_call>",), ("gemma4",), "recipes Google/gemma-4-31B-it", "tool_chat_template_gemma4.jinja"),
    Rule("FunctionGemma", ("Gemma3ForCausalLM",), ("<start_function_call>",), ("functiongemma",), _CALLS, "tool_chat_template_functiongemma.jinja"),
    Rule("Phi-4-mini", ("Phi3ForCausalLM",), ("<|tool|>",), ("phi4_mini_json",), "examples/tool_chat_template_phi4_mini.jinja", "tool_chat_template_phi4_mini.jinja"),
    Rule("InternLM2.5", ("InternLM2ForCausalLM",), (), ("internlm",), _CALLS, "tool_chat_template_internlm2_tool.jinja"),
    Rule("Jamba 1.5", ("JambaForCausalLM",), ("<tool_calls>",), ("jamba",), _CALLS),
    Rule("Seed-OSS", ("SeedOssForCausalLM",), (), ("seed_oss",), "recipes ByteDance-Seed/Seed-OSS-36B-Instruct"),
    Rule("Hunyuan-A13B", ("HunYuanMoEV1ForCausalLM",), (), ("hunyuan_a13b",), _CALLS),
    Rule("Step-3.5, Step-3.7", _STEP, (), ("step3p5",), "recipes stepfun-ai/Step-3.5-Flash"),
    Rule("Hy3", ("HYV3ForCausalLM",), (), ("hy_v3",), "recipes tencent/Hy3"),
    Rule("Laguna", ("LagunaForCausalLM",), (), ("poolside_v1",), "recipes poolside/Laguna-S-2.1"),
    Rule("Inkling", _INKLING, (), ("inkling",), "recipes thinkingmachines/Inkling"),
    Rule("MiMo-V2.5", _MIMO, (), ("mimo",), "recipes XiaomiMiMo/MiMo-V2.5-Pro"),
    Rule("MiMo-V2-Flash", ("MiMoV2FlashForCausalLM",), (), ("qwen3_xml",), "recipes XiaomiMiMo/MiMo-V2-Flash"),
    Rule("Ling-3", _LING3, (), ("ling3",), "recipes inclusionAI/Ling-3.0-flash"),
    Rule("dots3", ("Dots3NoteForCausalLM",), (), ("dots",), "recipes dots-studio/dots3-note-prev"),
    Rule("Muse Glimmer", _GLIMMER, (), ("muse_glimmer",), "recipes meta-models/Muse-Glimmer-30B"),
    Rule("Intern-S1", _S1, (), ("internlm",), "recipes internlm/Intern-S1"),
    Rule("Mellum 2", ("MellumForCausalLM",), (), ("hermes",), "recipes JetBrains/Mellum2-12B-A2.5B-Instruct"),
    Rule("Trinity", ("AfmoeForCausalLM",), ("<function=",), ("qwen3_coder",), "recipes arcee-ai/Trinity-Large-Thinking"),
    Rule("LFM2.5", _LFM2, (), ("lfm2",), "recipes LiquidAI/LFM2.5-1.2B-Instruct"),
    Rule("Olmo 3", ("Olmo3ForCausalLM",), (), ("olmo3",), _CALLS),
)
"""The first rule that a model meets says how it writes tool calls."""

REASONING = (
    Rule("Kimi-K2-Thinking", _V3, (_KIMI_TOOLS, "<think>"), ("kimi_k2",), "recipes moonshotai/Kimi-K2-Thinking"),
    Rule("Kimi-K2.5", _K25, (), ("kimi_k2",), "recipes moonshotai/Kimi-K2.5"),
    Rule("Kimi-K3", _K3, (), ("kimi_k3",), "recipes moonshotai/Kimi-K3"),
    Rule("DeepSeek-V3.1", _V3, (_NO_THOUGHT,), ("deepseek_v3",), _THOUGHTS),
    Rule("DeepSeek-R1, its distilled models", (*_V3, _LLAMA, "Qwen2ForCausalLM", "Qwen3ForCausalLM"), ("<｜Assistant｜>", "</think>"), ("deepseek_r1",), _THOUGHTS),
    Rule("DeepSeek-V3.2", ("DeepseekV32ForCausalLM",), (), ("deepseek_v3",), "recipes deepseek-ai/DeepSeek-V3.2"),
    Rule("DeepSeek-V4", _V4, (), ("deepseek_v4",), "recipes deepseek-ai/DeepSeek-V4-Pro"),
    Rule("gpt-oss", ("GptOssForCausalLM",), (), ("openai_gptoss",), "vllm/model_executor/models/config.py"),
    Rule("GLM-4.5 to GLM-5", _GLM, ("<think>",), ("glm45",), "recipes zai-org/GLM-4.6"),
    Rule("MiniMax-M2", ("MiniMaxM2ForCausalLM",), (), ("minimax_m2",), "recipes MiniMaxAI/MiniMax-M2"),
    Rule("MiniMax-M3", _M3, (), ("minimax_m3",), "recipes MiniMaxAI/MiniMax-M3"),
    Rule("Qwen3, Qwen3.5", (*_QWEN3, *_QWEN3_5), ("enable_thinking", "<think>"), ("qwen3",), f"{_THOUGHTS}, recipes Qwen/Qwen3.5-27B"),
    Rule("QwQ, Qwen3-Thinking-2507", ("Qwen2ForCausalLM", *_QWEN3, _NEXT), (_PROMPTED,), ("deepseek_r1",), f"{_THOUGHTS}, QwQ-32B"),
    Rule("Nemotron 3", ("NemotronHForCausalLM",), ("enable_thinking", "<function="), ("nemotron_v3",), "recipes nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"),
    Rule("Granite 3.2", _GRANITE, ("Here is my thought process:",), ("granite",), _THOUGHTS),
    Rule("Mistral", _MISTRAL, ("[THINK]",), ("mistral",), "recipes mistralai/Ministral-3-8B-Reasoning-2512"),
    Rule("Gemma 4", _GEMMA4, ("<|think|>",), ("gemma4",), "recipes Google/gemma-4-31B-it"),
    Rule("ERNIE-4.5-Thinking", ("Ernie4_5_MoeForCausalLM",), ("<think>",), ("ernie45",), _THOUGHTS),
    Rule("Hunyuan-A13B", ("HunYuanMoEV1ForCausalLM",), (), ("hunyuan_a13b",), _THOUGHTS),
    Rule("Step-3.5, Step-3.7", _STEP, (), ("step3p5",), "recipes stepfun-ai/Step-3.5-Flash"),
    Rule("Hy3", ("HYV3ForCausalLM",), (), ("hy_v3",), "recipes tencent/Hy3"),
    Rule("Laguna", ("LagunaForCausalLM",), (), ("poolside_v1",), "recipes poolside/Laguna-S-2.1"),
    Rule("Inkling", _INKLING, (), ("inkling",), "recipes thinkingmachines/Inkling"),
    Rule("MiMo-V2.5", _MIMO, (), ("mimo",), "recipes XiaomiMiMo/MiMo-V2.5-Pro"),
    Rule("MiMo-V2-Flash", ("MiMoV2FlashForCausalLM",), (), ("qwen3",), "recipes XiaomiMiMo/MiMo-V2-Flash"),
    Rule("Ling-3", _LING3, (), ("ling3",), "recipes inclusionAI/Ling-3.0-flash"),
    Rule("dots3", ("Dots3NoteForCausalLM",), (), ("qwen3",), "recipes dots-studio/dots3-note-prev"),
    Rule("Muse Glimmer", _GLIMMER, (), ("muse_glimmer",), "recipes meta-models/Muse-Glimmer-30B"),
    Rule("Intern-S1", _S1, (), ("deepseek_r1",), "recipes internlm/Intern-S1"),
    Rule("Mellum 2 Thinking", ("MellumForCausalLM",), ("<think>",), ("qwen3",), "recipes JetBrains/Mellum2-12B-A2.5B-Thinking"),
    Rule("Trinity Thinking", ("AfmoeForCausalLM",), ("<think>",), ("deepseek_r1",), "recipes arcee-ai/Trinity-Large-Thinking"),
    Rule("LFM2.5-Thinking", _LFM2, ("<think>",), ("qwen3",), "recipes LiquidAI/LFM2.5-1.2B-Thinking"),
)
"""The first rule that a model meets says how it writes its reasoning."""

# fmt: on

ARCHITECTURES = frozenset(name for rule in (*TOOLS, *REASONING) for name in rule.architectures)
