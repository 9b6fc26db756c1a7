/* What the names of pre-tokenizers in GGUF files (tokenizer.ggml.pre) mean: the patterns of the families' own tokenizers,
 * with what else a name implies where the file doesn't say it. */
#include "token/gguf_pre.h"

#include <string.h>

#include "token/pretok.h"

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define NOT_WORD "[^\\r\\n\\p{L}\\p{N}]?"
#define CASED(contraction) \
    NOT_WORD UPPER "*" LOWER "+" contraction "|" NOT_WORD UPPER "+" LOWER "*" contraction
#define SYMBOLS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"

static const char ascii_number[] = "\\p{N}", numbers_3[] = "\\p{N}{1,3}", numbers[] = "\\p{N}+";
static const char han_kana[] = "[一-龥぀-ゟ゠-ヿ]+", han_hangul[] = "[一-龥ࠀ-一가-퟿]+", line_end[] = "[\r\n]";
static const char deepseek3[] =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*" TAIL;
static const char deepseek_letters[] =
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷ"
    "ᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄ"
    "Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
static const char deepseek_signs[] = "\\s?[!-/:-~！-／：-～‘-‟　-。]+";
static const char o200k[] = CASED(CONTRACTION "?") "|\\p{N}{1,3}" SYMBOLS TAIL;
static const char tekken[] = CASED("") "|\\p{N}" SYMBOLS TAIL;
static const char falcon_signs[] = "[\\p{P}$+<=>^~|`]+", falcon_digits[] = "[0-9][0-9][0-9]";
static const char bloom[] = " ?[^(\\s|.,!?…。，、।۔،)]+";
static const char bailing[] = "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*"
                              "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+";
static const char seed_coder[] =
    CONTRACTION "|" NOT_WORD "\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" TAIL;
static const char minicpm5[] =
    CONTRACTION "|" NOT_WORD "\\p{L}+|\\p{N}+| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL;

static const struct gguf_pre pres[] = {
    {"qwen2", {PATTERN_QWEN2}, PRE_NFC},
    {"deepseek-r1-qwen", {PATTERN_QWEN2}, PRE_NFC},
    {"megrez", {PATTERN_QWEN2}, 0},
    {"stablelm2", {PATTERN_QWEN2}, 0},
    {"hunyuan", {PATTERN_QWEN2}, 0},
    {"solar-open", {PATTERN_QWEN2}, 0},
    {"grok-2", {PATTERN_QWEN2}, 0},
    {"qwen35", {PATTERN_QWEN35}, PRE_NFC},
    {"llama-bpe", {PATTERN_LLAMA3}, PRE_IGNORE_MERGES | PRE_ADD_BOS},
    {"llama3", {PATTERN_LLAMA3}, PRE_IGNORE_MERGES | PRE_ADD_BOS},
    {"llama-v3", {PATTERN_LLAMA3}, PRE_IGNORE_MERGES | PRE_ADD_BOS},
    {"falcon3", {PATTERN_LLAMA3}, PRE_IGNORE_MERGES | PRE_ADD_BOS},
    {"falcon-h1", {PATTERN_LLAMA3}, PRE_IGNORE_MERGES | PRE_ADD_BOS},
    {"midm-2.0", {PATTERN_LLAMA3}, PRE_IGNORE_MERGES | PRE_ADD_BOS},
    {"lfm2", {PATTERN_LLAMA3}, PRE_IGNORE_MERGES | PRE_ADD_BOS},
    {"pixtral", {PATTERN_LLAMA3}, PRE_IGNORE_MERGES | PRE_ADD_BOS},
    {"dbrx", {PATTERN_LLAMA3}, 0},
    {"smaug-bpe", {PATTERN_LLAMA3}, 0},
    {"chatglm-bpe", {PATTERN_LLAMA3}, 0},
    {"glm4", {PATTERN_LLAMA3}, PRE_IGNORE_MERGES},
    {"glm5", {PATTERN_LLAMA3}, PRE_IGNORE_MERGES},
    {"minicpm5", {numbers_3, minicpm5}, PRE_IGNORE_MERGES},
    {"tekken", {tekken}, PRE_IGNORE_MERGES | PRE_ADD_BOS},
    {"gpt-4o", {o200k}, 0},
    {"llama4", {o200k}, 0},
    {"kanana2", {o200k}, 0},
    {"minimax-m2", {o200k}, 0},
    {"deepseek-v3", {numbers_3, han_kana, deepseek3}, 0},
    {"hunyuan-dense", {numbers_3, han_kana, deepseek3}, 0},
    {"joyai-llm", {numbers_3, han_kana, deepseek3}, 0},
    {"deepseek-llm", {line_end, deepseek_letters, deepseek_signs, "\\s+$", han_hangul, numbers}, 0},
    {"deepseek-coder", {line_end, "\\s?\\p{L}+", "\\s?\\p{P}+", han_hangul, ascii_number}, 0},
    {"bailingmoe", {bailing}, 0},
    {"bailingmoe2", {bailing}, 0},
    {"llada-moe", {bailing}, 0},
    {"seed-coder", {seed_coder}, 0},
    {"falcon", {falcon_signs, PATTERN_GPT2, falcon_digits}, 0},
    {"bloom", {bloom}, 0},
    {"poro-chat", {bloom}, 0},
    {"gpt3-finnish", {bloom}, 0},
    {"viking", {bloom, ascii_number}, 0},
    {"command-r", {PATTERN_DIGIT, PATTERN_GPT2}, PRE_NFC},
    {"smollm", {PATTERN_DIGIT, PATTERN_GPT2}, 0},
    {"starcoder", {PATTERN_DIGIT, PATTERN_GPT2}, 0},
    {"refact", {PATTERN_DIGIT, PATTERN_GPT2}, 0},
    {"codeshell", {PATTERN_DIGIT, PATTERN_GPT2}, 0},
    {"exaone", {PATTERN_DIGIT, PATTERN_GPT2}, 0},
    {"minerva-7b", {PATTERN_DIGIT, PATTERN_GPT2}, 0},
    {"mellum2", {PATTERN_DIGIT, PATTERN_GPT2}, 0},
    {"gpt-2", {PATTERN_GPT2}, 0},
    {"phi-2", {PATTERN_GPT2}, 0},
    {"mpt", {PATTERN_GPT2}, PRE_NFC},
    {"olmo", {PATTERN_GPT2}, PRE_NFC},
    {"jais", {PATTERN_GPT2}, 0},
    {"exaone4", {PATTERN_GPT2}, 0},
    {"gigachat", {PATTERN_GPT2}, 0},
    {"mellum", {PATTERN_GPT2}, 0},
    {"a.x-4.0", {PATTERN_GPT2}, 0},
    {"trillion", {PATTERN_GPT2}, 0},
    {"granite-docling", {PATTERN_GPT2}, 0},
};

const struct gguf_pre *gguf_pre_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        if (strlen(pres[i].name) == n && !memcmp(pres[i].name, name, n))
            return &pres[i];
    return NULL;
}
