//! Many connections that say nothing.

use super::super::connections::MAX_OPEN;
use super::*;

/// They take no more file descriptors than we give them, and do not keep those for ever.
#[tokio::test]
async fn connections_that_say_nothing_are_few_and_end() {
    let fixture = start().await;
    let address = fixture.url.trim_start_matches("http://").to_owned();
    let files = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let before = files();
    let mut silent = Vec::new();
    for _ in 0..MAX_OPEN + 144 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
        silent.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Their ends and ours are in this process; other tests open a few files meanwhile.
    let ours = files().saturating_sub(before + silent.len());
    assert!(ours < MAX_OPEN + 70, "{ours} connections were taken");
    let mut answer = Vec::new();
    let ended = silent[0].read_to_end(&mut answer);
    let ended = tokio::time::timeout(Duration::from_secs(30), ended).await;
    assert!(ended.is_ok(), "a connection stays open for ever");
    // Whoever waited behind them has its turn.
    let request = "GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let waited = tokio::time::timeout(Duration::from_secs(30), fixture.raw(request)).await;
    assert!(waited.unwrap().starts_with("HTTP/1.1 200 "));
}

/// A body that never ends holds no connection for ever, however slowly or quickly it comes.
#[tokio::test]
async fn a_body_that_does_not_end_is_given_up() {
    let fixture = start().await;
    let address = fixture.url.trim_start_matches("http://").to_owned();
    let head = format!(
        "POST /v1/apply HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\
         content-length: 1000000\r\n\r\n{{"
    );
    for trickles in [false, true] {
        let began = std::time::Instant::now();
        let stream = TcpStream::connect(&address).await.unwrap();
        let (mut from, mut to) = stream.into_split();
        to.write_all(head.as_bytes()).await.unwrap();
        let writer = tokio::spawn(async move {
            while trickles && to.write_all(b" ").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            to
        });
        let mut answer = vec![0; 4_096];
        let read = tokio::time::timeout(Duration::from_secs(20), from.read(&mut answer));
        let count = read.await.expect("an answer").unwrap();
        let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(answer.contains("problem+json"), "{answer}");
        assert!(began.elapsed() >= BODY_TIME, "{:?}", began.elapsed());
        writer.abort();
    }
    // One that comes in time is read as ever.
    let job = fixture.put("a", r#"{"run":{"handler":"ok"}}"#).await;
    assert_eq!(job.spec.id, "a");
}
