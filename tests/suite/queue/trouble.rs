//! Whatever the backend does or returns, the worker survives, and an error says what to do without
//! revealing a password.

use super::*;

on_all!(garbage_and_panics_stop_nothing, a_lost_backend_comes_back,);

async fn garbage_and_panics_stop_nothing(bed: Bed) {
    let queue = bed.open().await;
    queue.enqueue("gpu", &job(0), NOW).await.unwrap();
    for n in 0..3_u8 {
        push_garbage(&bed, &[0xff, n, 0xfe, 0x01]).await;
    }
    let (stop, gate) = (CancellationToken::new(), Gate::new(1));
    let (report, mut started) = mpsc::unbounded_channel();
    let handler = move |job: Job| {
        let report = report.clone();
        async move {
            report
                .send((String::new(), job.clone(), Instant::now()))
                .unwrap();
            assert_eq!(job.part, 1, "a handler panics");
        }
    };
    let work = {
        let (queue, gate, stop) = (queue.clone(), gate.clone(), stop.clone());
        tokio::spawn(async move { queue.work("w", &["gpu"], gate, handler, stop).await })
    };
    assert_eq!(next(&mut started).await.1.part, 0);
    queue.enqueue("gpu", &job(1), NOW).await.unwrap();
    assert_eq!(next(&mut started).await.1.part, 1);
    while !queue.depth().await.unwrap().is_empty() {
        sleep(Duration::from_millis(20)).await;
    }
    // Neither is delivered again.
    silent(&mut started, LEASE * 2).await;
    assert_eq!(gate.in_flight(), 0);
    stop.cancel();
    work.await.unwrap().unwrap();
}

async fn push_garbage(bed: &Bed, bytes: &[u8]) {
    let id = format!("01ARZ3NDEKTSV4RRFFQ69G5F{:02X}", bytes[1]);
    match bed {
        Bed::Sqlite(_) => {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(bed.file());
            let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
            sqlx::query("INSERT INTO Jobs (job, id, job_type) VALUES (?1, ?2, 'agentgym:gpu')")
                .bind(bytes)
                .bind(id)
                .execute(&pool)
                .await
                .unwrap();
        }
        Bed::Simulated(server) => server.push_bytes("gpu", bytes.to_vec()),
        Bed::Redis(server) => {
            let id = id.as_bytes();
            let meta = format!("agentgym:gpu:meta:01ARZ3NDEKTSV4RRFFQ69G5F{:02X}", bytes[1]);
            let commands: [&[&[u8]]; 4] = [
                &[b"HSET", b"agentgym:gpu:data", id, bytes],
                &[
                    b"HSET",
                    meta.as_bytes(),
                    b"attempts",
                    b"0",
                    b"max_attempts",
                    b"25",
                    b"status",
                    b"Pending",
                ],
                &[b"RPUSH", b"agentgym:gpu:active", id],
                &[b"SADD", b"agentgym:lanes", b"gpu"],
            ];
            for command in commands {
                let answer = server.command(command).unwrap();
                assert!(answer.starts_with(':'), "{answer}");
            }
        }
    }
}

/// The queue is wiped under an idle worker and again under a busy one. Both times the next pushed
/// job runs without waiting for a lease.
async fn a_lost_backend_comes_back(mut bed: Bed) {
    let queue = bed.open().await;
    let (report, mut started) = mpsc::unbounded_channel();
    let hand = hire(&queue, "w", &["gpu"], Duration::from_millis(700), &report);
    queue.enqueue("gpu", &job(0), NOW).await.unwrap();
    next(&mut started).await;
    for (part, busy) in [(1, false), (2, true), (3, false)] {
        let pause = if busy { 100 } else { 1000 };
        sleep(Duration::from_millis(pause)).await;
        match &mut bed {
            Bed::Sqlite(folder) => {
                for entry in std::fs::read_dir(folder.path()).unwrap() {
                    std::fs::remove_file(entry.unwrap().path()).unwrap();
                }
            }
            Bed::Simulated(server) => server.wipe(),
            Bed::Redis(server) if part == 3 => server.restart(),
            Bed::Redis(server) => {
                assert_eq!(server.command(&[b"FLUSHALL"]).unwrap(), "+OK");
            }
        }
        let mut pushed = queue.enqueue("gpu", &job(part), NOW).await;
        let begun = Instant::now();
        while pushed.is_err() && begun.elapsed() < LONG {
            sleep(Duration::from_millis(50)).await;
            pushed = queue.enqueue("gpu", &job(part), NOW).await;
        }
        assert_eq!(pushed.unwrap(), Enqueued::Pushed);
        let (_, got, at) = next(&mut started).await;
        assert_eq!(got, job(part));
        let after = at - begun;
        assert!(after < Duration::from_secs(4), "part {part}: {after:?}");
        // A second process uses the same queue.
        let other = bed.open().await;
        assert_eq!(other.depth().await.unwrap(), []);
    }
    hand.drain().await;
}

#[tokio::test]
async fn a_dropped_connection_is_survived() {
    let bed = Bed::redis();
    let queue = bed.open().await;
    let (report, mut started) = mpsc::unbounded_channel();
    let hand = hire(&queue, "w", &["gpu"], NOW, &report);
    for part in 0..3 {
        queue.enqueue("gpu", &job(part), NOW).await.unwrap();
        next(&mut started).await;
        let Bed::Redis(server) = &bed else {
            unreachable!()
        };
        for kind in ["normal", "pubsub"] {
            let kill: [&[u8]; 4] = [b"CLIENT", b"KILL", b"TYPE", kind.as_bytes()];
            server.command(&kill).unwrap();
        }
        while queue.depth().await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    }
    hand.drain().await;
}

#[tokio::test]
async fn errors_say_what_to_do_and_no_password() {
    let closed = "redis://me:secret@127.0.0.1:1/0";
    let plain = RedisServer::start();
    let not_tls = plain.url().replace("redis://", "rediss://me:secret@");
    for (url, hint, is_setting) in [
        ("kafka://me:secret@host", "sqlite:PATH", true),
        ("sqlite:", "names no file", true),
        ("sqlite:/no/such/folder/q", "folder exists", false),
        (closed, "Check that Redis runs", false),
        (&not_tls, "without TLS is `redis://", false),
    ] {
        let error = Queue::open(url, options()).await.unwrap_err();
        let message = error.to_string();
        assert!(message.contains(hint), "{message}");
        assert!(!message.contains("secret"), "{message}");
        assert_eq!(matches!(error, Error::Url { .. }), is_setting, "{message}");
    }
    let hasty = QueueOptions {
        lease_ttl_s: 3,
        heartbeat_s: 2,
        ..options()
    };
    let error = Queue::open("memory:", hasty).await.unwrap_err();
    assert!(error.to_string().contains("jobs.lease_ttl_s"), "{error}");
}

/// A server with a password, a wrong password, and users who lack permission for the queue's
/// commands or key names: each is refused when the queue is opened, and the message says what to
/// change. The proposed change is sufficient.
#[tokio::test]
async fn a_redis_that_refuses_says_so_at_once() {
    let server = RedisServer::start();
    let say = |command: &str| {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        assert_eq!(server.command(&words).unwrap(), "+OK", "{command}");
    };
    let prefix = options().name_prefix;
    let enough = format!("~{prefix}:* ~core:apalis:* &{prefix}:* +@all -@admin");
    say("ACL SETUSER reader on >secret ~* &* +@read +@connection");
    say("ACL SETUSER silent on >secret ~* resetchannels +@all");
    say("ACL SETUSER elsewhere on >secret ~other:* &* +@all");
    say(&format!(
        "ACL SETUSER almost on >secret ~{prefix}:* &* +@all"
    ));
    say(&format!("ACL SETUSER good on >secret {enough}"));
    say("CONFIG SET requirepass the-secret");
    let refused = async |user: &str, word: &str| {
        let url = server.url().replace("redis://", &format!("redis://{user}"));
        let error = Queue::open(&url, options()).await.unwrap_err();
        let message = error.to_string();
        assert!(message.contains(word), "{user}: {message}");
        assert!(message.contains(&enough), "{user}: {message}");
        assert!(!message.contains("secret"), "{user}: {message}");
        assert!(matches!(error, Error::Refused { .. }), "{message}");
    };
    refused("", "Authentication required").await;
    refused(":secret@", "authentication failed").await;
    refused("nobody:secret@", "authentication failed").await;
    refused("reader:secret@", "'del' command").await;
    refused("silent:secret@", "channels").await;
    refused("elsewhere:secret@", "keys").await;
    refused("almost:secret@", "keys").await;

    let url = server.url().replace("redis://", "redis://good:secret@");
    let queue = Queue::open(&url, options()).await.unwrap();
    let (report, mut started) = mpsc::unbounded_channel();
    let hand = hire(&queue, "w", &["gpu"], NOW, &report);
    queue.enqueue("gpu", &job(0), NOW).await.unwrap();
    assert_eq!(next(&mut started).await.1, job(0));
    hand.drain().await;
}

/// Out of memory, then a read-only replica: jobs stay in the queue, pushes return an error, and
/// work resumes afterwards without intervention.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_takes_no_writes_is_waited_for() {
    let server = RedisServer::start();
    let queue = Queue::open(&server.url(), options()).await.unwrap();
    let (report, mut started) = mpsc::unbounded_channel();
    let hand = hire(&queue, "w", &["gpu"], NOW, &report);
    queue.enqueue("gpu", &job(0), NOW).await.unwrap();
    next(&mut started).await;
    let say = |command: &str| {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        assert_eq!(server.command(&words).unwrap(), "+OK", "{command}");
    };
    let troubles = [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    ];
    for (part, (trouble, remedy)) in (1..).zip(troubles) {
        say(trouble);
        let refused = queue.enqueue("gpu", &job(part), NOW).await;
        let message = refused.expect_err("nothing can be written").to_string();
        assert!(message.contains("push a job"), "{message}");
        // Heartbeats fail as well, for longer than a lease.
        silent(&mut started, LEASE * 2).await;
        say(remedy);
        let pushed = queue.enqueue("gpu", &job(part), NOW).await.unwrap();
        assert_eq!(pushed, Enqueued::Pushed);
        assert_eq!(next(&mut started).await.1, job(part));
    }
    hand.drain().await;
}

/// A run is submitted to workers elsewhere while Redis has no room: the plan is written, and the command
/// says that the queue is what has to be mended.
#[test]
fn a_full_redis_ends_a_submission_with_the_code_of_the_queue() {
    let server = RedisServer::start();
    let full: [&[u8]; 4] = [b"CONFIG", b"SET", b"maxmemory", b"1"];
    assert_eq!(server.command(&full).unwrap(), "+OK");
    let folder = tempfile::tempdir().unwrap();
    let mut command = agentgym_tests::program::program("agentgym-submit");
    command.args(["--quiet", "--queue", &server.url(), "--store"]);
    command.arg(folder.path());
    command.arg(agentgym_tests::program::workspace().join("configs/smoke.yaml"));
    let ended = agentgym_tests::program::finish({
        command.arg("jobs.workers=0");
        command
    });
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(5), "{said}");
    assert!(
        said.contains(&server.url()) && said.contains("memory"),
        "{said}"
    );
    assert!(
        !said.contains("tried again"),
        "this command has ended: {said}"
    );
}

/// The address of the queue moves to another server, as after a failover, while the connections to
/// the old one stay, which is a replica from now on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_behind_the_same_address_is_left() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::start(Manner::To(old.address())).await;
    let url = format!("redis://{}", proxy.address);
    let queue = Queue::open(&url, options()).await.unwrap();
    queue.probe("w").await.unwrap();
    proxy.set(Manner::To(new.address()));
    let address = new.address();
    let (host, port) = address.split_once(':').unwrap();
    let demoted = old.command(&[b"REPLICAOF", host.as_bytes(), port.as_bytes()]);
    assert_eq!(demoted.unwrap(), "+OK");
    let begun = Instant::now();
    while let Err(error) = queue.probe("w").await {
        assert!(begun.elapsed() < LONG, "{error}");
        sleep(Duration::from_millis(50)).await;
    }
    queue.enqueue("gpu", &job(0), NOW).await.unwrap();
    assert_eq!(queue.depth().await.unwrap(), [("gpu".to_owned(), 1)]);
}

#[tokio::test]
async fn a_cluster_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let server = RedisServer::start_with(&["--cluster-enabled", "yes", "--dir", dir]);
    let error = Queue::open(&server.url(), options()).await.unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, Error::Cluster { .. }), "{message}");
    assert!(message.contains("cluster-enabled no"), "{message}");
}

#[tokio::test]
async fn trouble_is_reported_and_taken_back() {
    for bed in [Bed::sqlite(), Bed::redis(), Bed::simulated()] {
        let queue = bed.open().await;
        let trouble = |why: &str| Trouble {
            since_unix_s: 5,
            why: why.to_owned(),
        };
        assert_eq!(queue.in_trouble().await.unwrap(), []);
        for why in ["clock", "clock", "token"] {
            queue.report_trouble("w", &trouble(why)).await.unwrap();
            let found = queue.in_trouble().await.unwrap();
            assert_eq!(found, [("w".to_owned(), trouble(why))]);
        }
        let dead = dead_process();
        queue
            .report_trouble(&dead, &trouble("clock"))
            .await
            .unwrap();
        assert_eq!(queue.in_trouble().await.unwrap().len(), 1, "one is dead");
        queue.trouble_is_over("w").await.unwrap();
        assert_eq!(queue.in_trouble().await.unwrap(), []);
        // A turn that is given back is the next one's at once.
        for _ in 0..2 {
            assert!(queue.planning_turn("r", LONG).await.unwrap());
            assert!(!queue.planning_turn("r", LONG).await.unwrap());
            queue.give_back_turn("r").await.unwrap();
        }
    }
}

/// A worker that the queue refuses cannot report it: it is named by its silence, until it is heard of
/// again or says that it ends.
#[tokio::test]
async fn a_silent_worker_is_named() {
    let bed = Bed::redis();
    let queue = bed.open().await;
    let silent = async |after| {
        let found = queue.in_trouble_or_silent(Duration::from_secs(after)).await;
        let found = found.unwrap().into_iter();
        found.map(|(worker, _)| worker).collect::<Vec<_>>()
    };
    for worker in ["well", "sick", "ended", &dead_process()] {
        queue.note_presence(worker, true).await.unwrap();
    }
    queue.note_presence("ended", false).await.unwrap();
    assert_eq!(silent(1).await, [""; 0]);
    sleep(Duration::from_secs(3)).await;
    queue.note_presence("well", true).await.unwrap();
    assert_eq!(silent(2).await, ["sick"]);
    let said = queue
        .in_trouble_or_silent(Duration::from_secs(2))
        .await
        .unwrap();
    assert!(said[0].1.why.contains("/health"), "{said:?}");
    let trouble = Trouble {
        since_unix_s: 5,
        why: "its store".to_owned(),
    };
    // What a worker says of itself is worth more.
    queue.report_trouble("sick", &trouble).await.unwrap();
    let said = queue
        .in_trouble_or_silent(Duration::from_secs(2))
        .await
        .unwrap();
    assert_eq!(said, [("sick".to_owned(), trouble)]);
    assert_eq!(queue.in_trouble().await.unwrap().len(), 1);
}
