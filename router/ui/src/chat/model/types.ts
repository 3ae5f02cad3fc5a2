/** Conversations, as they are kept in the browser and exported. */

export interface ToolCall {
  id: string;
  name: string;
  /** JSON, as the model wrote it. */
  arguments: string;
}

/** One token of an output: what it adds to the text, its log-probability, and the likeliest at its place. */
export interface Token {
  text: string;
  logprob: number;
  top: [string, number][];
}

/** Seconds; `tokens` are the engine's own count. */
export interface Stats {
  /** From sending to the first token. */
  ttft: number | null;
  /** From the first piece to the last, and the tokens of that time. */
  decode: number | null;
  decodeTokens: number | null;
  promptTokens: number | null;
  cachedTokens: number | null;
  tokens: number | null;
}

/** What went wrong, in words. */
export interface Failure {
  title: string;
  message: string;
  code: string | null;
  param: string | null;
  status: number | null;
  requestId: string | null;
}

/** An image of a message. Its file is the page's alone (`images.ts`): it is neither stored nor exported. */
export interface AttachedImage {
  name: string;
  /** A media type of `IMAGE_TYPES`. */
  type: string;
  bytes: number;
}

/** Fields of a request other than its messages. */
export type Fields = Record<string, unknown>;

/** What an assistant's turn was asked with. The messages are those of the turns before it. */
export interface Sent {
  system: string;
  fields: Fields;
}

export interface Turn {
  id: string;
  parent: string | null;
  role: "user" | "assistant" | "tool";
  content: string;
  /** Unix seconds. */
  created: number;
  /** Of a user: */
  images?: AttachedImage[];
  /** Of an assistant: */
  model?: string;
  reasoning?: string;
  toolCalls?: ToolCall[];
  tokens?: Token[];
  stats?: Stats;
  /** stop, length, tool_calls …; "stopped": by the user. */
  finish?: string;
  failure?: Failure;
  requestId?: string;
  sent?: Sent;
  /** Of a tool's result: */
  toolCallId?: string;
}

/** One model's side of a conversation: a tree of turns, of which one branch is shown. */
export interface Pane {
  model: string;
  turns: Record<string, Turn>;
  /** The last turn of what is shown. */
  leaf: string | null;
}

export interface Settings {
  /** Fields of `fields.ts` that were changed, as they were typed. */
  values: Record<string, string>;
  tools: string;
  /** Ask for probabilities, and show them. */
  tokens: boolean;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  system: string;
  settings: Settings;
  /** One, or two side by side. */
  panes: Pane[];
}
