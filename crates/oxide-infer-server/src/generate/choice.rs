//! One answer: token ids in, text out, with nothing shown that a stop string may still take back.

use super::output::{CallDelta, OutputParser, OutputPlan, Wanted};
use crate::protocol::params::GenerationParams;
use crate::protocol::response::{FinishWord, StopReason};
use crate::text::{DecodeFrom, Detokenizer, StopMatcher, StopStep, StopText, Tokenizer};
use oxide_infer::TokenId;
use oxide_infer::sampling::LogProbs;
use oxide_infer_engine::FinishReason;
use oxide_infer_engine::request::EosPolicy;
use std::collections::VecDeque;
use std::sync::Arc;

/// A token of an answer.
#[derive(Clone, Debug)]
pub(crate) struct AnswerToken {
    /// The token.
    pub(crate) id: TokenId,
    /// Characters of the answer before the token's.
    pub(crate) text_offset: usize,
    /// If asked for.
    pub(crate) logprobs: Option<LogProbs>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finish {
    /// In OpenAI's words.
    pub(crate) word: FinishWord,
    /// What stopped it.
    pub(crate) stop: Option<StopReason>,
}

/// What an answer has gained since it was last looked at.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    /// Content that can no longer be taken back.
    pub(crate) text: String,
    /// Reasoning, likewise.
    pub(crate) reasoning: String,
    /// Tool calls, likewise.
    pub(crate) calls: Vec<CallDelta>,
    /// The tokens whose text this and earlier deltas show completely.
    pub(crate) tokens: Vec<AnswerToken>,
    /// Set in the last delta.
    pub(crate) finish: Option<Finish>,
}

/// What the engine should know after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterToken {
    /// Nothing.
    GoOn,
    /// A stop string or the only call is complete: no further token is wanted.
    EndChoice,
}

/// An answer that is being made.
#[derive(Debug)]
pub(crate) struct Choice {
    ending: Ending,
    stop_strings: Vec<String>,
    min_tokens: u32,
    detokenizer: Detokenizer,
    /// The last token's text, kept for its allocation.
    piece: String,
    matcher: StopMatcher,
    output: OutputParser,
    /// Characters and bytes decoded so far, held back ones included.
    decoded_chars: usize,
    decoded_bytes: usize,
    /// Bytes that went into deltas.
    shown_bytes: usize,
    kept: KeptTokens,
    /// Tokens that are held back with their text, and the byte that must have been shown before they are.
    held: VecDeque<(usize, AnswerToken)>,
    generated: u32,
    /// Those of them up to the last that was reasoning.
    reasoning: u32,
    delta: Delta,
    ended: bool,
}

/// Whether the tokens of an answer are kept until they are shown beside its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeptTokens {
    /// They are: their ids or their log-probabilities were asked for.
    All,
    /// Nobody asked for them.
    None,
}

/// Which tokens end an answer, and whether they are shown.
#[derive(Clone, Debug)]
struct Ending {
    eos: EosPolicy,
    eos_token_ids: Arc<[TokenId]>,
    stop_token_ids: Arc<[TokenId]>,
    text: StopText,
}

impl Ending {
    fn is_end(&self, token: TokenId) -> bool {
        self.stop_token_ids.contains(&token)
            || (self.eos == EosPolicy::Stop && self.eos_token_ids.contains(&token))
    }
}

impl Choice {
    /// An answer without tokens. The stop strings have been checked when the request was read.
    pub(crate) fn new(
        params: &GenerationParams,
        plan: &OutputPlan,
        kept: KeptTokens,
        matcher: StopMatcher,
        eos_token_ids: &Arc<[TokenId]>,
        tokenizer: &Tokenizer,
    ) -> Self {
        Self {
            ending: Ending {
                eos: params.eos,
                eos_token_ids: eos_token_ids.clone(),
                stop_token_ids: params.stop_token_ids.clone(),
                text: params.stop_text,
            },
            stop_strings: params.stop.clone(),
            min_tokens: params.min_tokens,
            detokenizer: tokenizer
                .detokenizer(params.special, DecodeFrom::Continuation)
                .showing(plan.shown.clone()),
            piece: String::new(),
            matcher,
            output: OutputParser::new(plan),
            decoded_chars: 0,
            decoded_bytes: 0,
            shown_bytes: 0,
            kept,
            held: VecDeque::new(),
            generated: 0,
            reasoning: 0,
            delta: Delta::default(),
            ended: false,
        }
    }

    /// Takes the next token. What comes after the end is ignored: the engine may be a step ahead.
    pub(crate) fn push(&mut self, id: TokenId, logprobs: Option<LogProbs>) -> AfterToken {
        if self.ended {
            return AfterToken::GoOn;
        }
        self.generated += 1;
        let token = AnswerToken { id, text_offset: self.decoded_chars, logprobs };
        let is_end = self.ending.is_end(id);
        let is_hidden = is_end && self.ending.text == StopText::Exclude;
        let mut piece = std::mem::take(&mut self.piece);
        piece.clear();
        if !is_hidden {
            self.detokenizer.push_into(id, &mut piece);
        }
        self.decoded_chars += piece.chars().count();
        self.decoded_bytes += piece.len();
        if self.kept == KeptTokens::All {
            // The token that ends the answer goes out with the reason, which the engine tells next.
            let shown_at = if is_end { usize::MAX } else { self.decoded_bytes };
            self.held.push_back((shown_at, token));
        }
        let after = self.show(&piece);
        self.piece = piece;
        if self.output.is_reasoning() {
            self.reasoning = self.generated;
        }
        after
    }

    /// The engine has ended the answer.
    pub(crate) fn finish(&mut self, reason: FinishReason) {
        if self.ended {
            return;
        }
        let cut_off = self.detokenizer.finish();
        if self.show(&cut_off) == AfterToken::EndChoice {
            return;
        }
        let rest = self.matcher.finish();
        self.output.push(&rest, &mut self.delta);
        self.end(match reason {
            FinishReason::EndOfSequence | FinishReason::Host | FinishReason::Pooled => {
                Finish { word: FinishWord::Stop, stop: None }
            }
            FinishReason::StopToken(id) => {
                Finish { word: FinishWord::Stop, stop: Some(StopReason::Token(id)) }
            }
            FinishReason::Length => Finish { word: FinishWord::Length, stop: None },
        });
    }

    /// Tokens generated so far.
    pub(crate) fn generated(&self) -> u32 {
        self.generated
    }

    /// Tokens of reasoning, its opening tag included.
    pub(crate) fn reasoning_tokens(&self) -> u32 {
        self.reasoning
    }

    /// Whether the answer is complete.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// What is new since the last call.
    pub(crate) fn take_delta(&mut self) -> Delta {
        std::mem::take(&mut self.delta)
    }

    fn show(&mut self, piece: &str) -> AfterToken {
        // As in vLLM, stop strings count from the first token after `min_tokens`.
        if self.generated <= self.min_tokens || self.matcher.is_idle() {
            return self.release(piece);
        }
        match self.matcher.push(piece) {
            StopStep::Emit(text) => self.release(&text),
            StopStep::Stop { text, index } => {
                if self.release(&text) == AfterToken::EndChoice {
                    return AfterToken::EndChoice;
                }
                let stop = self.stop_strings.get(index).cloned().map(StopReason::Text);
                self.end(Finish { word: FinishWord::Stop, stop });
                AfterToken::EndChoice
            }
        }
    }

    fn release(&mut self, text: &str) -> AfterToken {
        let wanted = self.output.push(text, &mut self.delta);
        self.shown_bytes += text.len();
        while let Some((end, _)) = self.held.front() {
            if *end > self.shown_bytes {
                break;
            }
            self.delta.tokens.extend(self.held.pop_front().map(|(_, token)| token));
        }
        if wanted == Wanted::More {
            return AfterToken::GoOn;
        }
        self.end(Finish { word: FinishWord::Stop, stop: None });
        AfterToken::EndChoice
    }

    fn end(&mut self, mut finish: Finish) {
        self.ended = true;
        self.output.finish(&mut self.delta);
        if finish.word == FinishWord::Stop && self.output.ends_with_calls() {
            finish.word = FinishWord::ToolCalls;
        }
        self.delta.tokens.extend(self.held.drain(..).map(|(_, token)| token));
        self.delta.finish = Some(finish);
    }
}
