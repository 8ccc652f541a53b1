//! An answer under way: its places in the batch, and what becomes of it, whole or as a stream of
//! events. Whoever drops it gives all of that back.

use crate::answer::{Piece, Teller, document, finish_reason, usage};
use crate::ask::{Ask, Form};
use crate::calls::Calls;
use crate::owner::{Event as Told, Owner, ScoreAsk, Scored, Seat};
use crate::refusal::Refusal;
use crate::spelling::Special;
use agentgym_model::{GenerationRequest, Policy};
use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::{self, Stream};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// The policy that is served.
#[derive(Debug)]
pub struct ServedPolicy {
    /// The policy.
    pub policy: Policy,
    /// Its name in requests and answers.
    pub name: String,
}

/// What all answers need.
pub(crate) struct Serving {
    pub(crate) served: ServedPolicy,
    pub(crate) special: Special,
    pub(crate) owner: Owner,
    pub(crate) answers: AtomicUsize,
}

/// An answer under way.
pub(crate) struct Reply {
    serving: Arc<Serving>,
    id: String,
    ask: Ask,
    scored: Vec<Scored>,
    generated: AtomicUsize,
    _held: OwnedSemaphorePermit,
}

/// What comes of one choice, piece by piece.
struct Saying<'a> {
    reply: &'a Reply,
    choice: usize,
    teller: Teller<'a>,
    /// Where the message may call tools.
    calls: Option<Calls>,
    /// None where nothing is generated, or no more.
    seat: Option<Seat>,
}

impl Reply {
    /// Lets the messages of a request join the batch and scores what it wants scored.
    pub(crate) async fn begin(
        serving: Arc<Serving>,
        ask: Ask,
        held: OwnedSemaphorePermit,
    ) -> Result<(Self, Vec<Option<Seat>>), Refusal> {
        let kind = match ask.form {
            Form::Completion => "cmpl",
            Form::Chat => "chatcmpl",
        };
        let number = serving.answers.fetch_add(1, Ordering::Relaxed);
        let seats = (0..ask.prompts.len() * ask.n).map(|choice| seat(&serving.owner, &ask, choice));
        let seats = seats.collect();
        let mut scored = Vec::new();
        if ask.scores() {
            let asked = ScoreAsk {
                sequences: ask.prompts.clone(),
                // As the engine has it: the log-probs of greedy generation are those at 1.
                temperature: match ask.sampling.temperature {
                    0.0 => 1.0,
                    temperature => temperature,
                },
                likeliest: ask.likeliest,
            };
            scored = serving.owner.score(asked).await?;
        }
        let reply = Self {
            id: format!("{kind}-{number}"),
            serving,
            ask,
            scored,
            generated: AtomicUsize::new(0),
            _held: held,
        };
        Ok((reply, seats))
    }

    fn saying(&self, choice: usize, seat: Option<Seat>) -> Saying<'_> {
        let tokenizer = self.serving.served.policy.tokenizer();
        Saying {
            reply: self,
            choice,
            teller: Teller::new(&self.ask, tokenizer, &self.serving.special),
            calls: self.ask.calls(choice),
            seat,
        }
    }

    fn document(&self, choices: Vec<Value>) -> Value {
        document((&self.id, &self.serving.served.name), &self.ask, choices)
    }

    /// Ids of the prompts.
    pub(crate) fn read(&self) -> usize {
        self.ask.prompts.iter().map(Vec::len).sum()
    }

    fn usage(&self) -> Value {
        usage(self.read(), self.generated.load(Ordering::Relaxed))
    }

    /// The whole answer.
    pub(crate) async fn whole(&self, seats: Vec<Option<Seat>>) -> Result<Value, Refusal> {
        let choices = seats.into_iter().enumerate();
        let choices = choices.map(|(choice, seat)| self.saying(choice, seat).whole());
        let mut found = self.document(try_join_all(choices).await?);
        found["usage"] = self.usage();
        Ok(found)
    }
}

/// A choice's place in the batch; none where nothing is generated.
fn seat(owner: &Owner, ask: &Ask, choice: usize) -> Option<Seat> {
    let request = || GenerationRequest {
        sequence: 0,
        append: ask.prompts[choice / ask.n].clone(),
        stream: ask.stream_key(choice),
        turn: 0,
        sampling: ask.sampling,
        tokens_max: ask.tokens_max,
        stop_ids: ask.stop_ids.clone(),
    };
    let watched = ask.stream || ask.one_call || !ask.stops.is_empty();
    (ask.tokens_max > 0).then(|| owner.generate(request(), watched))
}

impl Saying<'_> {
    fn echo(&mut self) -> Piece {
        let ask = &self.reply.ask;
        let prompt = self.choice / ask.n;
        match ask.echo {
            false => Piece::default(),
            true => (self.teller).echo(&ask.prompts[prompt], self.reply.scored.get(prompt)),
        }
    }

    /// The next piece, and with the last one the reason of the end.
    async fn next(&mut self) -> Result<(Piece, Option<&'static str>), Refusal> {
        let Some(seat) = &mut self.seat else {
            return Ok((Piece::default(), Some("length")));
        };
        match seat.next().await? {
            Told::Drawn(drawn) => {
                let (mut piece, stopped) = self.teller.drawn(&drawn);
                let generated = &self.reply.generated;
                generated.fetch_add(piece.length(), Ordering::Relaxed);
                let finish = piece.heard(&mut self.calls, stopped.then_some("stop"));
                if finish.is_some() {
                    self.seat = None;
                }
                Ok((piece, finish))
            }
            Told::Ended(finish) => {
                let (mut piece, stopped) = self.teller.rest();
                let finish = if stopped {
                    "stop"
                } else {
                    finish_reason(finish)
                };
                let finish = piece.heard(&mut self.calls, Some(finish));
                Ok((piece, finish))
            }
        }
    }

    /// The choice of an answer that is sent at once.
    async fn whole(mut self) -> Result<Value, Refusal> {
        let mut all = self.echo();
        let echoed = all.length();
        loop {
            let (piece, finish) = self.next().await?;
            all.join(piece);
            if finish.is_some() {
                let said = all.length() - echoed;
                return Ok(self.teller.choice(self.choice, (&all, said), finish));
            }
        }
    }

    /// Sends the choice piece by piece.
    async fn told(mut self, events: &mpsc::Sender<Value>) -> Result<(), Refusal> {
        let reply = self.reply;
        // The receiver is dropped together with this.
        let send = |choice: Value| events.send(reply.document(vec![choice]));
        if reply.ask.form == Form::Chat {
            let delta = json!({"role": "assistant", "content": ""});
            let first = json!({"index": self.choice, "delta": delta, "logprobs": null, "finish_reason": null});
            let _ = send(first).await;
        }
        if reply.ask.echo {
            let piece = self.echo();
            let _ = send(self.teller.choice(self.choice, (&piece, 0), None)).await;
        }
        loop {
            let (piece, finish) = self.next().await?;
            let said = piece.length();
            if said > 0 || finish.is_some() {
                let _ = send(self.teller.choice(self.choice, (&piece, said), finish)).await;
            }
            if finish.is_some() {
                return Ok(());
            }
        }
    }
}

/// The answer in pieces: those of all choices as they come, the counts if they are asked for, and null at
/// the end.
pub(crate) fn pieces(reply: Reply, seats: Vec<Option<Seat>>) -> impl Stream<Item = Value> {
    let (events, receiver) = mpsc::channel(seats.len().max(1));
    let telling = async move {
        let choices = seats.into_iter().enumerate();
        let all = choices.map(|(choice, seat)| reply.saying(choice, seat).told(&events));
        match try_join_all(all).await {
            Err(refusal) => _ = events.send(refusal.document()).await,
            Ok(_) => {
                if reply.ask.counts {
                    let mut counts = reply.document(Vec::new());
                    counts["usage"] = reply.usage();
                    let _ = events.send(counts).await;
                }
                let _ = events.send(Value::Null).await;
            }
        }
    };
    let receiving = stream::unfold(receiver, |mut receiver| async move {
        let said: Value = receiver.recv().await?;
        Some((said, receiver))
    });
    // The work is part of the stream: whoever drops it drops the seats.
    let working = stream::once(telling).filter_map(|()| async { None });
    stream::select(receiving, working)
}
