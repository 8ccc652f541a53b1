//! Who answers a turn: this process's own engines, candle, an inference server, or a chat API. The episode loop
//! asks each in the same way, with all that was said before a message, and gets its ids and their
//! log-probs; of a chat API also the text, which its ids only stand for.

use crate::Result;
use crate::candle_engine::{CandleEngine, CandleSeat};
use crate::context::Report;
use crate::decoder::{Decoder, Sequence};
use crate::inference::InferenceServer;
use crate::inference::chat::{ChatAsk, ChatServer};
use agentgym_jobs::journal::Told;
use agentgym_model::{Generation, GenerationRequest, Message, Sampling};
use serde_json::Value;
use std::sync::Arc;

/// A way to generate.
pub(crate) enum TurnEngine {
    /// In this process, exactly.
    Own(Arc<Decoder>),
    /// In this process, by candle.
    Candle(Arc<CandleEngine>),
    /// By a server.
    Server(Arc<InferenceServer>),
    /// By a chat API.
    Chat(Arc<ChatServer>),
}

/// An episode's place in its engine. Dropping it frees what the engine keeps of the sequence.
pub(crate) enum TurnSeat {
    Own(Sequence),
    Candle(CandleSeat),
    Server(Arc<InferenceServer>),
    Chat(Arc<ChatServer>),
}

/// A message that the policy is to say.
pub(crate) struct TurnAsk<'a> {
    /// All ids before it.
    pub(crate) known: &'a [u32],
    /// Of each of them, whether the policy said it in this sequence.
    pub(crate) sampled: &'a [bool],
    /// The same as messages, for a chat API.
    pub(crate) messages: &'a [Message],
    /// What may be called in answer to these.
    pub(crate) tools: Option<&'a Value>,
    /// How many of them the seat was given before.
    pub(crate) given: usize,
    /// Random key of the episode.
    pub(crate) stream: [u8; 32],
    /// With the token's index it selects the random number.
    pub(crate) number: u32,
    /// How ids are chosen.
    pub(crate) sampling: Sampling,
    /// Most ids.
    pub(crate) tokens_max: usize,
    /// Ids that end it.
    pub(crate) stop_ids: &'a [u32],
}

impl TurnEngine {
    /// Announces the episodes, group and sample each, that are going to begin.
    pub(crate) fn expect(&self, episodes: impl Iterator<Item = (u32, u32)>) {
        if let Self::Own(decoder) = self {
            decoder.expect(episodes);
        }
    }

    /// A seat for an episode that begins.
    pub(crate) fn open(&self, episode: (u32, u32)) -> TurnSeat {
        match self {
            Self::Own(decoder) => TurnSeat::Own(decoder.open(episode)),
            Self::Candle(engine) => TurnSeat::Candle(engine.open()),
            Self::Server(server) => TurnSeat::Server(Arc::clone(server)),
            Self::Chat(server) => TurnSeat::Chat(Arc::clone(server)),
        }
    }

    /// Episodes that are played at once: `rows` on each of `threads`, or as many as candle computes
    /// one by one.
    pub(crate) fn rows(&self, rows: usize, threads: usize) -> usize {
        match self {
            Self::Candle(_) => threads,
            _ => rows.saturating_mul(threads),
        }
    }

    /// True if it takes and gives texts.
    pub(crate) fn is_chat(&self) -> bool {
        matches!(self, Self::Chat(_))
    }

    /// An answer of a chat API is part of an episode: one just given, or a journalled one.
    pub(crate) fn count(&self, told: &Told) {
        if let Self::Chat(server) = self {
            server.count(told.usage);
        }
    }

    /// Whether all that was generated so far is the policy's; false if that cannot be seen now.
    ///
    /// # Errors
    /// It is another policy's.
    pub(crate) async fn confirm(&self) -> Result<bool> {
        match self {
            Self::Own(_) | Self::Candle(_) | Self::Chat(_) => Ok(true),
            Self::Server(server) => server.confirm().await,
        }
    }

    /// [`TurnEngine::confirm`], until it can be seen.
    ///
    /// # Errors
    /// It is another policy's, or the patience with a server is over.
    pub(crate) async fn confirmed(&self) -> Result<()> {
        match self {
            Self::Own(_) | Self::Candle(_) | Self::Chat(_) => Ok(()),
            Self::Server(server) => server.confirmed().await,
        }
    }

    /// Tokens sampled so far.
    pub(crate) fn sampled_tokens(&self) -> u64 {
        match self {
            Self::Own(decoder) => decoder.sampled_tokens(),
            Self::Candle(engine) => engine.sampled_tokens(),
            Self::Server(server) => server.sampled_tokens(),
            Self::Chat(server) => server.sampled_tokens(),
        }
    }

    /// Figures of the engine.
    pub(crate) fn report(&self, report: &mut Report) {
        match self {
            Self::Own(decoder) => {
                report.stats.prompt_tokens_shared = Some(decoder.shared_tokens());
                report.stats.policy_s = Some(decoder.busy_s());
            }
            Self::Candle(engine) => report.stats.policy_s = Some(engine.busy_s()),
            Self::Chat(server) => server.report(report),
            Self::Server(server) => {
                report.stats.policy_s = Some(server.busy_s());
                if let Some(reading) = server.reading() {
                    report.stats.probe_distance = Some(reading.distance);
                    report.stats.probe_separation = reading.separation;
                    report.stats.probe_tells_apart = reading.tells_apart();
                }
            }
        }
    }
}

impl TurnSeat {
    /// A seat for another sequence of the same episode.
    pub(crate) fn another(&self) -> Self {
        match self {
            Self::Own(sequence) => Self::Own(sequence.another()),
            Self::Candle(seat) => Self::Candle(seat.another()),
            Self::Server(server) => Self::Server(Arc::clone(server)),
            Self::Chat(server) => Self::Chat(Arc::clone(server)),
        }
    }

    /// The policy's message, and what a chat API said in it.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) async fn turn(&self, ask: TurnAsk<'_>) -> Result<(Generation, Option<Told>)> {
        match self {
            Self::Own(sequence) => {
                let request = ask.request(sequence.id(), ask.given);
                Ok((sequence.turn(request).await?, None))
            }
            // It finds by itself what it has run.
            Self::Candle(seat) => {
                let said = seat.turn(ask.request(0, 0), ask.sampled.to_vec());
                Ok((said.await?, None))
            }
            // Nothing is kept there that an earlier attempt would have had to send: a message is
            // asked for with all ids before it, recorded ones as they are.
            Self::Server(server) => {
                let drawn = (ask.sampling, seed(&ask));
                let said = server.generate(ask.known, ask.tokens_max, drawn).await?;
                Ok((said, None))
            }
            Self::Chat(server) => {
                let asked = ChatAsk {
                    messages: ask.messages,
                    tools: ask.tools,
                    tokens_max: ask.tokens_max,
                    sampling: ask.sampling,
                };
                let (said, told) = server.say(&asked).await?;
                Ok((said, Some(told)))
            }
        }
    }
}

impl TurnAsk<'_> {
    /// For an engine in this process that has the first `given` ids of the sequence.
    fn request(&self, sequence: u64, given: usize) -> GenerationRequest {
        GenerationRequest {
            sequence,
            append: self.known[given..].to_vec(),
            stream: self.stream,
            turn: self.number,
            sampling: self.sampling,
            tokens_max: self.tokens_max,
            stop_ids: self.stop_ids.to_vec(),
        }
    }
}

/// A seed of the episode's own random key and the turn.
fn seed(ask: &TurnAsk<'_>) -> u32 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&ask.stream);
    hasher.update(&ask.number.to_le_bytes());
    let hash = hasher.finalize();
    let head: [u8; 4] = std::array::from_fn(|byte| hash.as_bytes()[byte]);
    // Some servers take it as a signed number, and the largest as none.
    u32::from_le_bytes(head) >> 1
}
