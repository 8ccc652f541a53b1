//! The journal of a part that plays episodes: the events that earlier attempts recorded, and the
//! events that this attempt adds.
//!
//! Each episode has a [`Tape`], which is read first. What the tape does not hold is sampled, or
//! requested from the environment, and then recorded on the tape. So an interrupted episode
//! continues at the end of its tape, and an episode with a complete tape is rebuilt from the tape
//! alone. New events wait in memory until [`TurnJournal::save`] writes all of them in one go.

mod segments;

use self::segments::{SEGMENT_BYTES, bounded, part_of, readable, sampled_tokens};
use crate::episode::Request;
use crate::{Report, Result, StageContext};
use agentgym_jobs::codec::{Payload as _, decode, encode, kind};
use agentgym_jobs::episode::{Episode, Episodes, Task};
use agentgym_jobs::journal::{
    Answered, Event, History, Link, Record, RecordedMessage, Segment, SegmentV1, Step, Told,
    beginning, link,
};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// Group and sample.
type Key = (u32, u32);

/// An episode of the part: its task and its random stream.
#[derive(Debug, Clone)]
pub struct EpisodeId {
    /// The task.
    pub task: Task,
    /// Group of the episode.
    pub group: u32,
    /// Index in the group.
    pub sample: u32,
    /// The random stream.
    pub stream: [u8; 32],
}

impl From<&Request> for EpisodeId {
    fn from(request: &Request) -> Self {
        Self {
            task: request.task.clone(),
            group: request.group,
            sample: request.sample,
            stream: request.stream,
        }
    }
}

/// The journal of one attempt.
pub struct TurnJournal {
    histories: BTreeMap<Key, History>,
    finished: BTreeMap<Key, Episode>,
    /// Tokens that earlier attempts had sampled, by their own count.
    sampled_before: u64,
    /// The count in the last segment of this attempt.
    sampled_told: u64,
    /// What [`Self::collect`] has taken over, and its tokens.
    collected: (Vec<(Record, usize)>, u64),
    /// Events up to those.
    collected_to: u64,
    shared: Arc<Shared>,
}

/// What the tapes of an attempt share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Events that are in the store.
    written: watch::Sender<u64>,
    /// Somebody waits until an event is there.
    wanted: Arc<Notify>,
}

/// State shared by the tapes of an attempt.
#[derive(Debug, Default)]
struct State {
    /// In write order, each with its approximate size in bytes.
    unsaved: Vec<(Record, usize)>,
    /// For each episode, the index of its last record in `unsaved`.
    latest: BTreeMap<Key, usize>,
    unsaved_tokens: u64,
    /// Events that were recorded.
    recorded: u64,
    journalled_tokens: u64,
    taken_up_tokens: u64,
    begun_anew: u64,
}

fn held(shared: &Shared) -> MutexGuard<'_, State> {
    // Consistent even after a panic elsewhere: nothing in this file panics while holding it.
    let state = shared.state.lock();
    state.unwrap_or_else(PoisonError::into_inner)
}

impl TurnJournal {
    /// Reads what earlier attempts of the part recorded of these episodes. Segments are freed one
    /// by one; a segment that cannot be read, or does not fit, is skipped and its work is redone.
    ///
    /// # Errors
    /// A missing input.
    pub fn read(
        context: &mut StageContext,
        episodes: impl IntoIterator<Item = EpisodeId>,
    ) -> Result<Self> {
        let part = part_of(context)?;
        let mut tasks = BTreeMap::new();
        let mut histories = BTreeMap::new();
        for id in episodes {
            let key = (id.group, id.sample);
            let begin = beginning(&part, &id.task, id.group, id.sample, &id.stream);
            histories.insert(key, History::new(begin));
            tasks.insert(key, id.task);
        }
        let mut finished = BTreeMap::new();
        let mut sampled: BTreeMap<u32, u64> = BTreeMap::new();
        let mut sampled_before = 0;
        for segment in std::mem::take(&mut context.replayed) {
            // Older programs journalled only finished episodes.
            if kind(&segment) == Some(Episodes::KIND) {
                for episode in
                    readable(decode::<Episodes>(&segment)).map_or(vec![], Episodes::into_vec)
                {
                    let key = (episode.group, episode.sample);
                    if tasks.get(&key) == Some(&episode.task) && episode.check().is_ok() {
                        let tokens = sampled_tokens(&episode);
                        if finished.insert(key, episode).is_none() {
                            sampled_before += tokens;
                        }
                    }
                }
                continue;
            }
            let Some(Segment::V1(segment)) = readable(decode::<Segment>(&segment)) else {
                continue;
            };
            let said = sampled.entry(segment.attempt).or_default();
            *said = segment.sampled_tokens.max(*said);
            for record in segment.records {
                if let Some(history) = histories.get_mut(&(record.group, record.sample)) {
                    history.add(record);
                }
            }
        }
        let sampled = sampled.into_values();
        sampled_before = sampled.fold(sampled_before, u64::saturating_add);
        let state = State {
            taken_up_tokens: finished.values().map(sampled_tokens).sum(),
            ..State::default()
        };
        Ok(Self {
            histories,
            finished,
            sampled_before,
            sampled_told: 0,
            collected: Default::default(),
            collected_to: 0,
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                ..Shared::default()
            }),
        })
    }

    /// Finished episodes that older programs journalled; they have no tape.
    pub(crate) fn take_finished(&mut self) -> BTreeMap<Key, Episode> {
        std::mem::take(&mut self.finished)
    }

    /// The tape of an episode that was named when the journal was read. May be taken once.
    pub fn tape(&mut self, group: u32, sample: u32) -> Tape {
        let history = self.histories.remove(&(group, sample));
        let (beginning, events) = history.map(History::into_parts).unwrap_or_default();
        Tape {
            group,
            sample,
            beginning,
            link: beginning,
            length: 0,
            is_taken_up: !events.is_empty(),
            tokens: 0,
            recorded: events.into(),
            shared: Arc::clone(&self.shared),
        }
    }

    /// Takes over the events recorded so far, for the next [`Self::write`].
    pub fn collect(&mut self) {
        let mut state = held(&self.shared);
        state.latest.clear();
        self.collected.0.append(&mut state.unsaved);
        self.collected.1 += std::mem::take(&mut state.unsaved_tokens);
        self.collected_to = state.recorded;
    }

    /// [`Self::collect`] and [`Self::write`].
    ///
    /// # Errors
    /// The store fails.
    pub async fn save(
        &mut self,
        context: &mut StageContext,
        sampled_tokens: impl Fn() -> u64,
        last: bool,
    ) -> Result<()> {
        self.collect();
        self.write(context, sampled_tokens, last).await
    }

    /// Writes the collected events. `sampled_tokens` is the attempt's count of
    /// sampled tokens so far; the `last` segment of an attempt records it even without new events.
    ///
    /// # Errors
    /// The store fails.
    pub async fn write(
        &mut self,
        context: &mut StageContext,
        sampled_tokens: impl Fn() -> u64,
        last: bool,
    ) -> Result<()> {
        let (records, tokens) = std::mem::take(&mut self.collected);
        // Read after taking the records, so that it covers every recorded token.
        let sampled_tokens = sampled_tokens();
        if records.is_empty() && !(last && sampled_tokens > self.sampled_told) {
            return Ok(());
        }
        for records in bounded(records) {
            let segment = Segment::V1(SegmentV1 {
                attempt: context.journal.attempt(),
                sampled_tokens,
                records,
            });
            let content = Bytes::from(encode(&segment)?);
            context.journal.append(content).await?;
        }
        self.sampled_told = sampled_tokens;
        held(&self.shared).journalled_tokens += tokens;
        self.shared.written.send_replace(self.collected_to);
        Ok(())
    }

    /// Notified when somebody waits until an event is written.
    pub(crate) fn wanted(&self) -> Arc<Notify> {
        Arc::clone(&self.shared.wanted)
    }

    /// Figures about tokens that were sampled twice; see docs/metrics.md.
    pub fn report(&self, sampled_tokens: u64, report: &mut Report) {
        let state = held(&self.shared);
        report.stats.sampled_tokens = Some(sampled_tokens);
        report.stats.journalled_tokens = Some(state.journalled_tokens);
        report.stats.taken_up_tokens = Some(state.taken_up_tokens);
        let twice = self.sampled_before.saturating_sub(state.taken_up_tokens);
        report.stats.sampled_twice_tokens = Some(twice);
        report.stats.episodes_begun_anew = Some(state.begun_anew);
    }
}

/// The events of an episode: recorded ones first, in order, then new ones. If the next event is not
/// the requested one, the rest of the tape is discarded.
#[derive(Debug)]
pub struct Tape {
    group: u32,
    sample: u32,
    beginning: Link,
    /// Digest over all events so far.
    link: Link,
    /// Number of events so far.
    length: u32,
    /// Recorded by an earlier attempt, and not yet replayed.
    recorded: VecDeque<(Event, Link)>,
    /// True if an earlier attempt recorded some of it.
    is_taken_up: bool,
    /// Tokens in the replayed events.
    tokens: u64,
    shared: Arc<Shared>,
}

impl Tape {
    /// A tape with these events, whose new events are never saved.
    #[cfg(test)]
    pub(crate) fn holding(events: &[Event]) -> Self {
        let beginning = Link::default();
        let linked = events.iter().scan(beginning, |before, event| {
            *before = link(before, event).ok()?.0;
            Some((event.clone(), *before))
        });
        Self {
            group: 0,
            sample: 0,
            beginning,
            link: beginning,
            length: 0,
            is_taken_up: !events.is_empty(),
            recorded: linked.collect(),
            tokens: 0,
            shared: Arc::default(),
        }
    }

    /// The newly recorded events, and how often an episode started over.
    #[cfg(test)]
    pub(crate) fn news(&self) -> (Vec<Event>, u64) {
        let state = held(&self.shared);
        let records = state.unsaved.iter();
        let events = records.flat_map(|(record, _)| record.events.clone());
        (events.collect(), state.begun_anew)
    }

    /// True if all further events are new.
    pub fn is_used_up(&self) -> bool {
        self.recorded.is_empty()
    }

    /// True if the whole episode is recorded.
    pub fn is_whole(&self) -> bool {
        let last = self.recorded.back();
        matches!(last, Some((Event::Over | Event::Played(_), _)))
    }

    /// The environment's first observation, if it is recorded.
    pub fn opened(&mut self) -> Option<String> {
        self.next(|event| match event {
            Event::Opened(text) => Ok(text),
            other => Err(other),
        })
    }

    /// The policy's next message and its entropies, if the recorded ones pass `passes`.
    pub fn message(
        &mut self,
        passes: impl Fn(&RecordedMessage, Option<&[f32]>) -> bool,
    ) -> Option<(RecordedMessage, Option<Vec<f32>>)> {
        let said = self.next(|event| match event {
            Event::Message(said) if passes(&said, None) => Ok((said, None)),
            Event::MessageWithEntropies(said, own) if passes(&said, Some(&own)) => {
                Ok((said, Some(own)))
            }
            other => Err(other),
        })?;
        self.take_up(said.0.token_ids.len());
        Some(said)
    }

    /// A chat API's next message, if the recorded one passes `passes`.
    pub fn told(
        &mut self,
        passes: impl Fn(&RecordedMessage) -> bool,
    ) -> Option<(RecordedMessage, Told)> {
        let said = self.next(|event| match event {
            Event::Told(said, told) if passes(&said) => Ok((said, *told)),
            other => Err(other),
        })?;
        self.take_up(said.0.token_ids.len());
        Some(said)
    }

    /// The recorded answers to an agent, in the order in which they were given, and the episode if it is
    /// whole.
    pub(crate) fn answers(&mut self) -> (Vec<Answered>, Option<Episode>) {
        let mut answers = Vec::new();
        while matches!(self.recorded.front(), Some((Event::Answered(_), _)))
            && let Some(answered) = self.next(|event| match event {
                Event::Answered(answered) => Ok(*answered),
                other => Err(other),
            })
        {
            self.take_up(answered.message.token_ids.len());
            answers.push(answered);
        }
        let played = self.next(|event| match event {
            Event::Played(played) => Ok(*played),
            other => Err(other),
        });
        let episode = played.and_then(|played| played.into_vec().pop());
        (answers, episode.filter(|episode| episode.check().is_ok()))
    }

    fn take_up(&mut self, tokens: usize) {
        self.tokens += tokens as u64;
        held(&self.shared).taken_up_tokens += tokens as u64;
    }

    /// The possible actions, if they are recorded.
    pub fn actions(&mut self) -> Option<Option<Vec<String>>> {
        self.next(|event| match event {
            Event::Actions(list) => Ok(list),
            other => Err(other),
        })
    }

    /// The environment's answer, if it is recorded.
    pub fn step(&mut self) -> Option<Step> {
        self.next(|event| match event {
            Event::Step(step) => Ok(step),
            other => Err(other),
        })
    }

    /// Marks the end of the episode.
    pub fn over(&mut self) {
        let known = self.next(|event| match event {
            Event::Over => Ok(()),
            other => Err(other),
        });
        if known.is_none() {
            self.record(Event::Over);
        }
    }

    fn next<T>(&mut self, take: impl FnOnce(Event) -> Result<T, Event>) -> Option<T> {
        let (event, link) = self.recorded.pop_front()?;
        match take(event) {
            Ok(taken) => {
                (self.link, self.length) = (link, self.length + 1);
                Some(taken)
            }
            Err(_) => {
                self.recorded.clear();
                None
            }
        }
    }

    /// Records an event that has just happened.
    pub fn record(&mut self, event: Event) {
        let before = self.link;
        // Encoding an event cannot fail; if it did, later events could not be linked, which costs
        // work but not correctness.
        let Ok((link, bytes)) = link(&before, &event) else {
            return;
        };
        let from = self.length;
        (self.link, self.length) = (link, from + 1);
        let mut state = held(&self.shared);
        let state = &mut *state;
        state.unsaved_tokens += event.sampled_tokens();
        state.recorded += 1;
        let key = (self.group, self.sample);
        let latest = state.latest.get(&key).copied();
        // A record may not be larger than a segment.
        let open = latest
            .and_then(|index| state.unsaved.get_mut(index))
            .filter(|(record, size)| {
                record.from as usize + record.events.len() == from as usize
                    && size + bytes <= SEGMENT_BYTES
            });
        match open {
            Some((record, size)) => {
                record.events.push(event);
                *size += bytes;
            }
            None => {
                state.latest.insert(key, state.unsaved.len());
                let record = Record {
                    group: self.group,
                    sample: self.sample,
                    from,
                    before,
                    events: vec![event],
                };
                state.unsaved.push((record, bytes));
            }
        }
    }

    /// Waits until all that was recorded so far is in the store.
    pub(crate) fn written(&self) -> impl Future<Output = ()> + use<> {
        let recorded = held(&self.shared).recorded;
        let mut written = self.shared.written.subscribe();
        self.shared.wanted.notify_one();
        async move {
            // The attempt ends otherwise, and who waits with it.
            let _ = written.wait_for(|written| *written >= recorded).await;
        }
    }

    /// Discards all events: the episode is played from its beginning.
    pub fn begin_anew(&mut self) {
        let mut state = held(&self.shared);
        state.taken_up_tokens = state.taken_up_tokens.saturating_sub(self.tokens);
        state.begun_anew += u64::from(self.is_taken_up);
        drop(state);
        (self.link, self.length, self.tokens) = (self.beginning, 0, 0);
        self.is_taken_up = false;
        self.recorded.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(bytes: usize) -> Event {
        Event::Opened("x".repeat(bytes))
    }

    #[test]
    fn segments_are_bounded_and_continue_each_other() {
        let mut tape = Tape::holding(&[]);
        for bytes in [10, 20 << 20, 20 << 20, 40 << 20, 10, 10] {
            tape.record(opened(bytes));
        }
        let unsaved = std::mem::take(&mut held(&tape.shared).unsaved);
        let sizes: Vec<_> = unsaved.iter().map(|(r, _)| r.events.len()).collect();
        assert_eq!(sizes, [2, 1, 1, 2]);
        let segments = bounded(unsaved);
        assert_eq!(segments.len(), 4);
        for segment in &segments {
            let bytes = encode(&Segment::V1(SegmentV1 {
                attempt: 1,
                sampled_tokens: 0,
                records: segment.clone(),
            }));
            assert!(bytes.unwrap().len() < SEGMENT_BYTES + (9 << 20));
        }
        let mut history = History::new(Link::default());
        segments.into_iter().flatten().for_each(|r| history.add(r));
        assert_eq!(history.into_parts().1.len(), 6);
        assert_eq!(bounded(Vec::new()), [vec![]]);
    }

    #[test]
    fn an_episode_that_begins_anew_is_recorded_from_its_beginning() {
        let mut tape = Tape::holding(&[opened(1), opened(2)]);
        assert!(tape.opened().is_some() && !tape.is_used_up());
        tape.begin_anew();
        assert!(tape.is_used_up());
        tape.record(opened(3));
        tape.begin_anew();
        tape.record(opened(4));
        tape.over();
        let unsaved = std::mem::take(&mut held(&tape.shared).unsaved);
        let mut history = History::new(Link::default());
        unsaved.into_iter().for_each(|(r, _)| history.add(r));
        let events: Vec<Event> = history.into_parts().1.into_iter().map(|(e, _)| e).collect();
        assert_eq!(events, [opened(4), Event::Over]);
        assert_eq!(
            tape.news().1,
            1,
            "only what an earlier attempt had played counts"
        );
    }
}
