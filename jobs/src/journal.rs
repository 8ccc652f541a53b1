//! The journal of a rollout: records of unfinished episodes, so that the next attempt at the part
//! samples nothing twice.
//!
//! An episode is a list of [`Event`]s in the order in which the conversation needs them. A
//! [`Record`] is a piece of such a list and identifies, by a digest over everything before it,
//! which list it continues. So missing, foreign, duplicated or mixed segments of several attempts
//! need no special handling: a record that does not continue the known events is left out, and
//! those events are sampled again.

use crate::Result;
use crate::codec::{Payload, encode_body};
use crate::episode::{Episodes, Parse, Task};
use serde::{Deserialize, Serialize};

/// A digest over an episode so far: its identity and its events.
pub type Link = [u8; 32];

/// A message that the policy sampled: a turn or a summary. Its text follows from the ids, its
/// random numbers from its number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedMessage {
    /// Selects the random numbers.
    pub number: u32,
    /// Ids as sampled, including a sampled end token.
    pub token_ids: Vec<u32>,
    /// Log-probs at sampling time, one per id.
    pub log_probs: Vec<f32>,
    /// If top_k or top_p cut: for each id, the log of the probability mass they kept.
    pub log_kept_masses: Option<Vec<f32>>,
    /// The last id is an end token.
    pub ended: bool,
}

/// What a chat API said in a message. The message's ids are the text's in the run's own tokenizer, and
/// its log-probs are [`crate::episode::NO_LOG_PROB`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The text, as it was answered.
    pub text: String,
    /// Tokens that the API has read and written for it, where it says so.
    pub usage: Option<(u64, u64)>,
}

/// The environment's answer to a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Text for the policy.
    pub observation: String,
    /// The step's reward.
    pub reward: f64,
    /// The environment's own flag.
    pub done: bool,
    /// The reward meets the environment's rule for success.
    pub success: bool,
    /// The action sent, if any.
    pub action: Option<String>,
    /// How the action was found.
    pub parse: Parse,
    /// The client answered itself; nothing was sent to the server.
    pub local: bool,
}

/// An answer to an agent behind a harness. It is found again by its prompt and its message's number: how
/// often the episode had asked exactly that before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// BLAKE3 of the ids of the prompt, each as four bytes, little end first.
    pub prompt: [u8; 32],
    /// The answer.
    pub message: RecordedMessage,
    /// The entropy of each token, where it is recorded.
    pub entropies: Option<Vec<f32>>,
}

/// One event of an episode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The environment's first observation.
    Opened(String),
    /// The policy sampled a message.
    Message(RecordedMessage),
    /// The possible actions before a turn were requested.
    Actions(Option<Vec<String>>),
    /// The environment answered the last message.
    Step(Step),
    /// The episode has its outcome; no events follow.
    Over,
    /// The policy sampled a message, and the entropy of each of its tokens is recorded too.
    MessageWithEntropies(RecordedMessage, Vec<f32>),
    /// A chat API answered with a message.
    Told(RecordedMessage, Box<Told>),
    /// The policy answered an agent behind a harness.
    Answered(Box<Answered>),
    /// The whole episode of such an agent; no events follow.
    Played(Box<Episodes>),
}

impl Event {
    /// Number of tokens sampled for the event.
    pub fn sampled_tokens(&self) -> u64 {
        match self {
            Self::Message(message)
            | Self::MessageWithEntropies(message, _)
            | Self::Told(message, _) => message.token_ids.len() as u64,
            Self::Answered(answered) => answered.message.token_ids.len() as u64,
            _ => 0,
        }
    }
}

/// Consecutive events of one episode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Group of the episode.
    pub group: u32,
    /// Index in the group.
    pub sample: u32,
    /// Number of events before the first of these; 0 if the episode starts or restarts here.
    pub from: u32,
    /// [`link`] over the events before.
    pub before: Link,
    /// The events, in order.
    pub events: Vec<Event>,
}

/// The content of a segment of a rollout's journal. A versioned enum, so that old segments stay
/// readable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Segment {
    /// The first wire form.
    V1(SegmentV1),
}

/// See [`Segment::V1`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SegmentV1 {
    /// Number of the attempt that wrote it.
    pub attempt: u32,
    /// Tokens that the attempt had sampled so far, journalled or not.
    pub sampled_tokens: u64,
    /// Events since the attempt's previous segment.
    pub records: Vec<Record>,
}

impl Payload for Segment {
    const KIND: [u8; 4] = *b"TURN";
}

/// The start of an episode's digest chain: `part` identifies the part, its run and its inputs; the
/// other arguments identify the episode. So a record of another episode never continues it.
pub fn beginning(part: &Link, task: &Task, group: u32, sample: u32, stream: &[u8; 32]) -> Link {
    let mut hasher = blake3::Hasher::new();
    hasher.update(part);
    hasher.update(&(task.env.len() as u64).to_le_bytes());
    hasher.update(task.env.as_bytes());
    hasher.update(&task.item_id.to_le_bytes());
    hasher.update(&group.to_le_bytes());
    hasher.update(&sample.to_le_bytes());
    hasher.update(stream);
    hasher.finalize().into()
}

/// The digest of `before` and the event after it, and the event's size in bytes.
///
/// # Errors
/// The event cannot be encoded.
pub fn link(before: &Link, event: &Event) -> Result<(Link, usize)> {
    let body = encode_body(event)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(before);
    hasher.update(&body);
    Ok((hasher.finalize().into(), body.len()))
}

/// The events of an episode known from the records of earlier attempts.
#[derive(Debug)]
pub struct History {
    beginning: Link,
    events: Vec<(Event, Link)>,
}

impl History {
    /// A history without events.
    pub fn new(beginning: Link) -> Self {
        Self {
            beginning,
            events: Vec::new(),
        }
    }

    /// Adds a record. Events that are known already stay, including known events after them; where
    /// the events differ, the record, which is newer, replaces the rest. A record that continues
    /// something else is ignored.
    pub fn add(&mut self, record: Record) {
        let mut at = record.from as usize;
        let before = match at.checked_sub(1) {
            None => Some(self.beginning),
            Some(last) => self.events.get(last).map(|(_, link)| *link),
        };
        if before != Some(record.before) {
            tracing::debug!(
                record.group,
                record.sample,
                record.from,
                "a journal's record continues something else"
            );
            return;
        }
        let mut before = record.before;
        for event in record.events {
            let Ok((own, _)) = link(&before, &event) else {
                return;
            };
            if self.events.get(at).is_none_or(|(_, known)| *known != own) {
                self.events.truncate(at);
                self.events.push((event, own));
            }
            (before, at) = (own, at + 1);
        }
    }

    /// The events, each with the digest up to and including it, and the digest before the first.
    pub fn into_parts(self) -> (Link, Vec<(Event, Link)>) {
        (self.beginning, self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};
    use proptest::prelude::*;

    fn start() -> Link {
        let task = Task {
            env: "textcraft".into(),
            item_id: 7,
        };
        beginning(&[1; 32], &task, 3, 1, &[2; 32])
    }

    fn message(number: u32) -> Event {
        Event::Message(RecordedMessage {
            number,
            token_ids: vec![number, 300, 70_000],
            log_probs: vec![-0.5, 0.0, -2.0],
            log_kept_masses: (number > 1).then(|| vec![0.0, -0.5, 0.0]),
            ended: true,
        })
    }

    fn step(reward: f64) -> Event {
        Event::Step(Step {
            observation: "Got 1 plank".into(),
            reward,
            done: false,
            success: false,
            action: Some("get 1 plank".into()),
            parse: Parse::Clean,
            local: false,
        })
    }

    /// Records of an episode's events, cut at the given places.
    fn records(events: &[Event], cuts: &[usize]) -> Vec<Record> {
        let (mut before, mut at, mut all) = (start(), 0, Vec::new());
        for cut in cuts.iter().copied().chain([events.len()]) {
            let own = events[at..cut].to_vec();
            let from = at as u32;
            let record = Record {
                group: 3,
                sample: 1,
                from,
                before,
                events: own.clone(),
            };
            all.push(record);
            before = own.iter().fold(before, |b, e| link(&b, e).unwrap().0);
            at = cut;
        }
        all
    }

    fn known(records: impl IntoIterator<Item = Record>) -> Vec<Event> {
        let mut history = History::new(start());
        records.into_iter().for_each(|r| history.add(r));
        let events = history.into_parts().1;
        events.into_iter().map(|(event, _)| event).collect()
    }

    fn episode() -> Vec<Event> {
        let mut events = vec![Event::Opened("Goal: craft stick".into())];
        for turn in 0..4 {
            events.push(Event::Actions(Some(vec!["inventory".into()])));
            events.push(message(turn));
            events.push(step(f64::from(turn)));
        }
        events.push(Event::Over);
        events
    }

    /// The wire form of V1, byte for byte: journals outlive releases.
    #[test]
    fn v1_is_golden() {
        let segment = Segment::V1(SegmentV1 {
            attempt: 2,
            sampled_tokens: 300,
            records: vec![Record {
                group: 3,
                sample: 1,
                from: 0,
                before: [9; 32],
                events: vec![
                    Event::Opened("go".into()),
                    message(1 << 31),
                    Event::Actions(None),
                    Event::Actions(Some(vec!["up".into()])),
                    step(0.5),
                    Event::Over,
                ],
            }],
        });
        let mut body = vec![0, 2, 251, 44, 1, 1, 3, 1, 0];
        body.extend([9; 32]);
        body.extend([6, 0, 2, b'g', b'o']);
        body.extend([1, 252, 0, 0, 0, 128, 3, 252, 0, 0, 0, 128]);
        body.extend([251, 44, 1, 252, 112, 17, 1, 0, 3]);
        body.extend([0, 0, 0, 191, 0, 0, 0, 0, 0, 0, 0, 192]);
        body.extend([1, 3, 0, 0, 0, 0, 0, 0, 0, 191, 0, 0, 0, 0, 1]);
        body.extend([2, 0, 2, 1, 1, 2, b'u', b'p', 3, 11]);
        body.extend(b"Got 1 plank");
        body.extend([0, 0, 0, 0, 0, 0, 224, 63, 0, 0, 1, 11]);
        body.extend(b"get 1 plank");
        body.extend([0, 0, 4]);
        let bytes = encode(&segment).unwrap();
        assert_eq!(bytes[..10], *b"AGRLTURN\x01\x00");
        assert_eq!(bytes[50..], body);
        assert_eq!(decode::<Segment>(&bytes).unwrap(), segment);
        // The digest chain is an interface too: later programs read it.
        let (next, size) = link(&start(), &message(0)).unwrap();
        let hex = |link: Link| blake3::Hash::from_bytes(link).to_hex().to_string();
        assert_eq!(
            (hex(start())[..16].to_owned(), size),
            ("21a2dd08cf52e6f8".to_owned(), 27)
        );
        assert_eq!(hex(next)[..16], *"7d9ce33e08d571b1");
    }

    proptest! {
        #[test]
        fn what_fits_is_used_and_nothing_else(
            mut cuts in proptest::collection::vec(0usize..14, 0..5),
            lost in proptest::collection::vec(any::<prop::sample::Index>(), 0..3),
            order in any::<u64>(),
        ) {
            cuts.sort_unstable();
            let whole = episode();
            let all = records(&whole, &cuts);
            prop_assert_eq!(&known(all.clone()), &whole);
            // Several attempts, one of which knew fewer events.
            let twice = all.iter().chain(&all[..1]).cloned();
            prop_assert_eq!(&known(twice), &whole);
            // If records are missing, duplicated or reordered, the result is a prefix of the
            // episode.
            let mut some = all.clone();
            for index in &lost {
                if !some.is_empty() {
                    some.remove(index.index(some.len()));
                }
            }
            if !some.is_empty() {
                let by = order as usize % some.len();
                some.rotate_left(by);
            }
            let found = known(some);
            prop_assert_eq!(&found[..], &whole[..found.len()]);
        }
    }

    #[test]
    fn a_newer_record_that_differs_has_its_way_and_a_foreign_one_has_none() {
        let whole = episode();
        let all = records(&whole, &[7]);
        // Restarted: the old continuation does not fit any more.
        let anew = vec![whole[0].clone(), whole[1].clone(), message(9)];
        let newer = records(&anew, &[]).remove(0);
        let mixed = [all[0].clone(), newer, all[1].clone()];
        assert_eq!(known(mixed), anew);
        let mut other = all[1].clone();
        other.before[0] ^= 1;
        assert_eq!(known([all[0].clone(), other]), whole[..7]);
        let mut far = all[1].clone();
        far.from = u32::MAX;
        assert_eq!(known([all[0].clone(), far]), whole[..7]);
        let task = Task {
            env: "textcraft".into(),
            item_id: 8,
        };
        let mut foreign = all[0].clone();
        foreign.before = beginning(&[1; 32], &task, 3, 1, &[2; 32]);
        assert!(known([foreign]).is_empty());
    }
}
