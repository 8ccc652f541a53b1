//! Tells open pages that something is new. Pages listen; the store is listed once every two
//! seconds for each run that somebody looks at, however many pages do, and not at all without one.

use crate::answers::Answers;
use crate::refusal::{Refusal, RefusalKind};
use futures::stream::{self, Stream};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Between two looks at the store.
const PAUSE: Duration = Duration::from_secs(2);
/// Pages that may listen at the same time.
pub(crate) const LISTENERS_MAX: usize = 32;

/// The listeners by run (none for the list of all runs).
#[derive(Clone, Default)]
pub(crate) struct News {
    topics: Arc<Mutex<HashMap<Option<String>, watch::Sender<String>>>>,
}

impl News {
    /// What is new in a run, as a stream that ends with the listener.
    pub(crate) fn listen(
        &self,
        source: &Arc<dyn Answers>,
        run: Option<String>,
    ) -> Result<impl Stream<Item = String> + use<>, Refusal> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        topics.retain(|_, topic| topic.receiver_count() > 0);
        let listeners: usize = topics.values().map(watch::Sender::receiver_count).sum();
        if listeners >= LISTENERS_MAX {
            return Err(Refusal::new(
                RefusalKind::TooMany,
                format!("{LISTENERS_MAX} pages listen already; close some"),
            ));
        }
        let receiver = match topics.get(&run) {
            Some(topic) => topic.subscribe(),
            None => {
                let (topic, receiver) = watch::channel(String::new());
                topics.insert(run.clone(), topic.clone());
                tokio::spawn(look(Arc::clone(source), run, topic));
                receiver
            }
        };
        Ok(stream::unfold(receiver, |mut receiver| async move {
            receiver.changed().await.ok()?;
            let news = receiver.borrow_and_update().clone();
            Some((news, receiver))
        }))
    }
}

/// Looks at the store for as long as somebody listens.
async fn look(source: Arc<dyn Answers>, run: Option<String>, topic: watch::Sender<String>) {
    while topic.receiver_count() > 0 {
        match source.pulse(run.as_deref()).await {
            Ok(pulse) => {
                topic.send_if_modified(|known| {
                    let is_new = *known != pulse;
                    *known = pulse;
                    is_new
                });
            }
            Err(refusal) => tracing::debug!(%refusal, "cannot look for news"),
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = topic.closed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Ask;
    use bytes::Bytes;
    use futures::StreamExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Counting(AtomicUsize);

    #[async_trait::async_trait]
    impl Answers for Counting {
        async fn answer(&self, _: &Ask) -> Result<Bytes, Refusal> {
            Ok(Bytes::new())
        }

        async fn pulse(&self, _: Option<&str>) -> Result<String, Refusal> {
            let looks = self.0.fetch_add(1, Ordering::SeqCst);
            Ok(format!("{}", looks / 2))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_store_is_looked_at_once_for_all_pages_and_not_without_one() {
        let counting = Arc::new(Counting::default());
        let source: Arc<dyn Answers> = counting.clone();
        let news = News::default();
        let mut all: Vec<_> = (0..LISTENERS_MAX)
            .map(|_| Box::pin(news.listen(&source, Some("r".into())).unwrap()))
            .collect();
        let refused = news.listen(&source, Some("r".into())).err().unwrap();
        assert!(refused.message.contains("close some"));
        for stream in &mut all {
            assert_eq!(stream.next().await.as_deref(), Some("0"));
        }
        for stream in &mut all {
            assert_eq!(stream.next().await.as_deref(), Some("1"));
        }
        assert_eq!(
            counting.0.load(Ordering::SeqCst),
            3,
            "one look in two is news"
        );
        drop(all);
        tokio::time::sleep(PAUSE * 4).await;
        let after = counting.0.load(Ordering::SeqCst);
        assert!(after <= 4, "{after} looks");
        assert!(news.listen(&source, None).is_ok());
    }
}
