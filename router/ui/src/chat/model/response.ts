/** From the chunks of a streamed chat completion to turns. */

import type { Stats, Token, ToolCall } from "./types";

interface ChunkToken {
  token: string;
  logprob: number;
  top_logprobs?: { token: string; logprob: number }[];
}

export interface Chunk {
  error?: { message?: string; code?: string | null; param?: string | null; type?: string };
  choices?: {
    index: number;
    delta?: {
      content?: string | null;
      reasoning_content?: string | null;
      reasoning?: string | null;
      refusal?: string | null;
      tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
    };
    logprobs?: { content?: ChunkToken[] | null } | null;
    finish_reason?: string | null;
  }[];
  usage?: {
    prompt_tokens?: number;
    completion_tokens?: number;
    prompt_tokens_details?: { cached_tokens?: number } | null;
  } | null;
}

/** What has come of one output so far. */
export interface Output {
  content: string;
  reasoning: string;
  toolCalls: ToolCall[];
  tokens: Token[];
  finish: string | null;
}

/** All outputs of a request, with its times; `now` is in seconds. */
export class ResponseState {
  readonly outputs: Output[];
  private first: number | null = null;
  private last: number | null = null;
  private usage: Chunk["usage"] = null;
  private pieces = 0;
  /** Tokens that had been generated when the first piece came: an output that is held back comes with many. */
  private before = 0;

  constructor(
    count: number,
    private readonly started: number,
  ) {
    this.outputs = Array.from({ length: count }, () => ({
      content: "",
      reasoning: "",
      toolCalls: [],
      tokens: [],
      finish: null,
    }));
  }

  add(chunk: Chunk, now: number): void {
    if (chunk.usage) this.usage = chunk.usage;
    for (const choice of chunk.choices ?? []) {
      const output = this.outputs[choice.index];
      if (!output) continue;
      const delta = choice.delta ?? {};
      const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
      const content = delta.content ?? delta.refusal ?? "";
      if (content || reasoning || delta.tool_calls?.length || choice.logprobs?.content?.length) {
        this.last = now;
        this.pieces += 1;
        if (this.first === null) {
          this.first = now;
          this.before = this.usage?.completion_tokens ?? 1;
        }
      }
      output.content += content;
      output.reasoning += reasoning;
      for (const part of delta.tool_calls ?? []) {
        const call = (output.toolCalls[part.index] ??= { id: "", name: "", arguments: "" });
        call.id ||= part.id ?? "";
        call.name += part.function?.name ?? "";
        call.arguments += part.function?.arguments ?? "";
      }
      for (const token of choice.logprobs?.content ?? []) output.tokens.push(toToken(token));
      if (choice.finish_reason) output.finish = choice.finish_reason;
    }
  }

  stats(): Stats {
    const tokens = this.usage?.completion_tokens ?? (this.pieces || null);
    return {
      ttft: this.first === null ? null : this.first - this.started,
      decode: this.first === null || this.last === null ? null : this.last - this.first,
      promptTokens: this.usage?.prompt_tokens ?? null,
      cachedTokens: this.usage?.prompt_tokens_details?.cached_tokens ?? null,
      tokens,
      decodeTokens: tokens === null ? null : Math.max(0, tokens - this.before),
    };
  }
}

/** Digits that show are kept: thousands of tokens are stored. */
const rounded = (logprob: number) => Math.round(logprob * 1e4) / 1e4;

function toToken(token: ChunkToken): Token {
  return {
    text: token.token,
    logprob: rounded(token.logprob),
    top: (token.top_logprobs ?? []).map((other) => [other.token, rounded(other.logprob)]),
  };
}

/** Tokens a second after the first piece; null before there are two, or where all came at once. */
export function tokensPerSecond(stats: Stats): number | null {
  if (!stats.decodeTokens || stats.decodeTokens < 2 || !stats.decode || stats.decode < 0.01) return null;
  return stats.decodeTokens / stats.decode;
}
