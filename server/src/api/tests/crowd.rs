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
