//! Large objects are sent in parts, and are as patient as small ones: what is sent stays sent.

use super::{Bench, manifest, slot};
use agentgym_storage::{
    AttemptId, Committed, Error, Inputs, Key, Manifest, Outputs, PartKey, Patience, Store,
};
use agentgym_tests::s3::{Manners, S3Server};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const PART_BYTES: usize = 16 << 20;

/// Three parts and a remainder.
fn large() -> Bytes {
    let bytes = (0..3 * PART_BYTES + 12_345).map(|i| (i % 251) as u8);
    bytes.collect::<Vec<_>>().into()
}

/// A store whose callers wait, and how often they were asked to. `then` is called each time.
fn patient(
    store: &Store,
    then: impl Fn(usize) + Send + Sync + 'static,
) -> (Store, Arc<AtomicUsize>) {
    let waits = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&waits);
    (store.patient(Waits { count, then }), waits)
}

struct Waits<F> {
    count: Arc<AtomicUsize>,
    then: F,
}

impl<F: Fn(usize) + Send + Sync> Patience for Waits<F> {
    fn waits(&self, _: &Error, _: Duration) -> bool {
        (self.then)(self.count.fetch_add(1, Ordering::SeqCst) + 1);
        true
    }
}

/// Uploads are refused for longer than the client's own retries, once before an upload has begun and
/// once in its middle. It begins once, and no part that arrived is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_outlasts_a_server_that_refuses_parts() {
    let dir = tempfile::tempdir().unwrap();
    let server = Arc::new(S3Server::start(dir.path()).await);
    let store = Store::open_with(&server.url, &server.env()).await.unwrap();
    let again = Arc::clone(&server);
    let (store, waits) = patient(&store, move |wait| {
        if wait >= 2 {
            again.set_refuses_parts(false);
        }
    });
    let (slot, attempt) = (slot("run", 1, "update", 0), AttemptId::new(1));
    let mut outputs = Outputs::new(store.clone(), slot.clone(), attempt.clone());
    let mut writer = outputs.create("policy", "test").await.unwrap();
    let content = large();

    server.set_refuses_parts(true);
    writer.write(content.slice(..PART_BYTES + 7)).await.unwrap();
    assert!(waits.load(Ordering::SeqCst) >= 2, "it was refused twice");
    // The first part is under way in the background.
    while server.requests_by_folder().get("PUT files") != Some(&1) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.set_refuses_parts(true);
    writer.write(content.slice(PART_BYTES + 7..)).await.unwrap();
    writer.finish().await.unwrap();

    let requests = server.requests_by_folder();
    let served = |kind| requests.get(kind).copied().unwrap_or_default();
    assert_eq!(served("PUT files"), 4, "{requests:?}");
    assert_eq!(served("POST files"), 2, "begun and completed: {requests:?}");
    assert_eq!(served("DELETE files"), 0, "{requests:?}");
    // Seven tries each time that somebody waited.
    assert!(served("REFUSED files") >= 14, "{requests:?}");
    let made = manifest(&slot, &attempt, outputs.into_artifacts());
    let inputs = Inputs::new(store, vec![("in".into(), made)], dir.path().join("cache"));
    assert_eq!(inputs.bytes("in", "policy").await.unwrap(), content);
}

/// Nobody waits for good: the error of the store ends the upload, as that of a small write does.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_ends_with_the_patience_of_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    let server = S3Server::start(dir.path()).await;
    let store = Store::open_with(&server.url, &server.env()).await.unwrap();
    server.set_refuses_parts(true);
    let mut outputs = Outputs::new(store, slot("run", 1, "update", 0), AttemptId::new(1));
    let refused = outputs.bytes("policy", "test", large()).await.unwrap_err();
    assert!(
        matches!(refused, agentgym_storage::Error::Unavailable { .. }),
        "{refused}"
    );
}

/// The object is made of its parts, and the answer that says so is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_no_lost_upload() {
    let dir = tempfile::tempdir().unwrap();
    let server = S3Server::start_with(dir.path(), Manners::LosesFirstAnswers).await;
    let store = Store::open_with(&server.url, &server.env()).await.unwrap();
    let attempt = AttemptId::new(1);
    let mut outputs = Outputs::new(store, slot("run", 1, "update", 0), attempt);
    let written = outputs.bytes("policy", "test", large()).await.unwrap();
    let file = server.file_of(&written.key.path());
    assert_eq!(std::fs::read(file).unwrap(), large());
}

/// A file where the attempt's folder would be stands for a folder that cannot be written for a while.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_outlasts_a_folder_that_fails() {
    let bench = Bench::folder().await;
    let in_the_way = bench.file_of("runs");
    std::fs::write(&in_the_way, "").unwrap();
    let file = in_the_way.clone();
    let (store, waits) = patient(&bench.store, move |_| {
        let _ = std::fs::remove_file(&file);
    });
    let attempt = AttemptId::new(1);
    let mut outputs = Outputs::new(store, slot("run", 1, "update", 0), attempt);
    let written = outputs.bytes("policy", "test", large()).await.unwrap();
    assert_eq!(
        std::fs::read(bench.file_of(&written.key.path())).unwrap(),
        large()
    );
    assert_eq!(waits.load(Ordering::SeqCst), 1);
    let folder = bench.file_of(&written.key.path());
    let names = std::fs::read_dir(folder.parent().unwrap()).unwrap();
    assert_eq!(names.count(), 1, "its draft is gone");
}

const CHUNK_PARTS: usize = 4;

/// The first attempt at a part, which uploads `sent` of the parts of `policy` and dies, and a local file
/// of ten parts and a remainder, which the second attempt makes.
struct Died {
    dir: tempfile::TempDir,
    server: S3Server,
    store: Store,
    slot: PartKey,
    first: AttemptId,
    content: Vec<u8>,
}

impl Died {
    async fn after(sent: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = S3Server::start(dir.path()).await;
        let store = Store::open_with(&server.url, &server.env()).await.unwrap();
        let (slot, first) = (slot("run", 1, "update", 0), AttemptId::new(1));
        let bytes = (0..10 * PART_BYTES + 12_345).map(|i| (i % 251) as u8);
        let content: Vec<u8> = bytes.collect();
        let mut outputs = Outputs::new(store.clone(), slot.clone(), first.clone());
        let mut writer = outputs.create("policy", "test").await.unwrap();
        // One by one, so that it is certain what the journal names.
        for (before, part) in (0..).zip(content.chunks(PART_BYTES).take(sent)) {
            while server
                .requests_by_folder()
                .get("PUT files")
                .is_some_and(|puts| *puts < before)
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            writer.write(Bytes::copy_from_slice(part)).await.unwrap();
        }
        if sent * PART_BYTES > content.len() {
            writer.finish().await.unwrap();
        } else {
            drop(writer);
        }
        Self {
            dir,
            server,
            store,
            slot,
            first,
            content,
        }
    }

    /// Parts and single objects put so far.
    fn puts(&self) -> u64 {
        let requests = self.server.requests_by_folder();
        requests.get("PUT files").copied().unwrap_or_default()
    }

    /// Writes `content` in attempt `number` and commits it; the manifest, and the requests it took.
    async fn again(&self, number: u32, content: &[u8]) -> (Manifest, u64) {
        let before = self.puts();
        let file = self.dir.path().join("made");
        std::fs::write(&file, content).unwrap();
        let attempt = AttemptId::new(number);
        let mut outputs = Outputs::new(self.store.clone(), self.slot.clone(), attempt.clone());
        outputs.file("policy", "test", &file).await.unwrap();
        let made = Manifest::new(self.slot.clone(), attempt, outputs.into_artifacts());
        assert_eq!(self.store.commit(&made).await.unwrap(), Committed::Won);
        let read = self.store.manifest(&self.slot).await.unwrap().unwrap();
        let inputs = vec![("in".to_owned(), read)];
        let inputs = Inputs::new(self.store.clone(), inputs, self.dir.path().join("cache"));
        assert_eq!(&inputs.bytes("in", "policy").await.unwrap()[..], content);
        (made, self.puts() - before)
    }

    fn is_in_folder_of(&self, attempt: &AttemptId, made: &Manifest) -> bool {
        matches!(&made.outputs[0].key, Key::File { attempt: of, .. } if of == attempt)
    }
}

/// A later attempt that makes the same bytes sends what is missing. The commit names the file where the
/// first attempt began it and a fork takes it over.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_attempt_goes_on_with_an_upload() {
    let died = Died::after(8).await;
    let requests = died.server.requests_by_folder();
    assert_eq!(requests.get("PUT journal"), Some(&1), "{requests:?}");
    let (made, puts) = died.again(2, &died.content).await;
    // The first chunk is known to be there; the second was under way.
    assert_eq!(puts, 11 - CHUNK_PARTS as u64);
    assert!(died.is_in_folder_of(&died.first, &made));
    assert_eq!(made.version, Manifest::OF_SEVERAL_ATTEMPTS);
    let requests = died.server.requests_by_folder();
    assert_eq!(requests.get("DELETE files"), None, "{requests:?}");

    let taken = made.clone().taken_over("child".parse().unwrap(), |_| true);
    let taken = taken.unwrap();
    assert_eq!(
        Manifest::from_bytes(&taken.to_bytes().unwrap()).unwrap(),
        taken
    );
    let mut elsewhere = made;
    elsewhere.part = 1;
    let refused = elsewhere.to_bytes().unwrap_err().to_string();
    assert!(refused.contains("lies at"), "{refused}");
}

/// The object is whole, and its attempt died before it committed: nothing is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_attempt_names_an_object_that_is_whole() {
    let died = Died::after(11).await;
    let (made, puts) = died.again(2, &died.content).await;
    assert_eq!(puts, 0);
    assert!(died.is_in_folder_of(&died.first, &made));
}

/// Two attempts died, the second after it had gone on with the upload of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_third_attempt_knows_what_the_second_sent() {
    let died = Died::after(8).await;
    let file = died.dir.path().join("made");
    std::fs::write(&file, &died.content).unwrap();
    let mut outputs = Outputs::new(died.store.clone(), died.slot.clone(), AttemptId::new(2));
    outputs.file("policy", "test", &file).await.unwrap();
    let (made, puts) = died.again(3, &died.content).await;
    assert_eq!(puts, 0);
    assert!(died.is_in_folder_of(&died.first, &made));
}

/// Other bytes, and an upload that its server has ended, are sent whole, into the attempt's own folder.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_gone_on_with_is_sent_whole() {
    let died = Died::after(8).await;
    let mut other = died.content.clone();
    other[7] ^= 1;
    let (made, puts) = died.again(2, &other).await;
    assert_eq!(puts, 11);
    assert!(!died.is_in_folder_of(&died.first, &made));
    assert_eq!(made.version, Manifest::VERSION);

    let died = Died::after(8).await;
    died.server.forget_uploads();
    let (made, puts) = died.again(2, &died.content).await;
    assert!(puts >= 11, "{puts}");
    assert!(!died.is_in_folder_of(&died.first, &made));
}
