//! What is checked before a connection, and after it.

use tokio::net::TcpListener;

use super::*;

fn request() -> Request<Full<Bytes>> {
    Request::new(Full::new(Bytes::new()))
}

fn client(patterns: &[String], ours: ControlPlane) -> Client {
    let patterns = patterns.iter().map(|text| Pattern::parse(text).unwrap());
    let allowed = Allowed::named("--http-allow", patterns.collect(), ours);
    Client::new(allowed.and_public())
}

async fn refused(client: &Client, url: &str) -> String {
    let call = client.call(url, request(), &|| true);
    match timeout(PATIENCE, call).await.expect("it was called") {
        Err(CallError::Refused(why)) => why,
        Err(error) => panic!("{url}: {error:?}"),
        Ok(_) => panic!("{url} was called"),
    }
}

/// What `HttpUrl` takes, a request can have.
#[test]
fn every_url_that_is_taken_makes_a_request() {
    for byte in 0..=255_u8 {
        for url in [
            format!("https://a.org/x{}y", char::from(byte)),
            format!("https://a.org/?x={}y", char::from(byte)),
        ] {
            if let Ok(url) = HttpUrl::parse(&url) {
                assert_eq!(address(&mut request(), &url), Ok(()), "{}", url.path);
            }
        }
    }
}

/// The same place by another name is the same place: of the store, and of the node's own API.
#[tokio::test]
async fn what_controls_the_cluster_is_not_called_by_another_name() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let by = |hosts: &[&str]| -> Vec<String> {
        let all = hosts.iter().map(|host| format!("http://{host}:{port}"));
        all.collect()
    };
    let store = ControlPlane::new(vec![format!("localhost:{port}")], 1);
    let client_of_store = client(&by(&["127.0.0.1", "localhost"]), store);
    for host in ["127.0.0.1", "localhost", "LOCALHOST."] {
        let why = refused(&client_of_store, &format!("http://{host}:{port}/v3/kv")).await;
        assert!(why.contains("belongs to the scheduler"), "{why}");
    }
    let own = ControlPlane::new(Vec::new(), port);
    let client_of_own = client(&by(&["127.0.0.1", "127.0.0.2", "localhost"]), own);
    for host in ["127.0.0.1", "127.0.0.2", "localhost"] {
        let why = refused(&client_of_own, &format!("http://{host}:{port}/v1/jobs")).await;
        assert!(why.contains("belongs to the scheduler"), "{why}");
    }
    // Nobody has called.
    let accepted = timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(accepted.is_err());
}

/// A name that stands for this machine, which nobody allowed. What is called is not what a name says, but
/// what it stands for.
#[tokio::test]
async fn a_name_that_leads_to_this_machine_is_not_called() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let nobody = client(&[], ControlPlane::default());
    let below = client(&[format!("*.localhost:{port}")], ControlPlane::default());
    for client in [&nobody, &below] {
        for host in [
            "localhost",
            "localhost.",
            "127.0.0.1",
            "[::ffff:127.0.0.1]",
            "[::1]",
        ] {
            refused(client, &format!("https://{host}:{port}/")).await;
        }
    }
    let accepted = timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(accepted.is_err());
}
