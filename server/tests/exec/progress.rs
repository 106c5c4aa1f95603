//! What commands say of themselves, as far as the executor has a hand in it; that it is kept and
//! given back is tested with whole nodes.

use punctual::job::run::FailReason;

use crate::{Bench, failure};

#[tokio::test]
async fn the_descriptor_is_the_third_and_a_wrong_line_is_told_of_once() {
    let bench = Bench::new();
    let script = r#"
        echo nonsense >&3; echo more >&3
        echo '{"progress": 0.5, "note": "half"}' >&3
        echo "descriptor $PUNCTUAL_PROGRESS_FD"
    "#;
    let execution = bench.script(script).await;
    assert_eq!(execution.failure, None);
    let output = execution.output_tail.unwrap();
    assert!(output.contains("descriptor 3\n"), "{output}");
    let told = output.matches("punctual: a line on the descriptor PUNCTUAL_PROGRESS_FD");
    assert_eq!(told.count(), 1, "{output}");
}

#[tokio::test]
async fn many_lines_hold_nobody_up() {
    let bench = Bench::new();
    let script = r#"
        long=$(printf '%01000d' 0); i=0
        while [ $i -lt 3000 ]; do
            echo "{\"checkpoint\": \"$long\"}" >&3
            i=$((i + 1))
        done
        exit 3
    "#;
    let execution = bench.script(script).await;
    assert_eq!(failure(&execution), (FailReason::Exit, "exit status 3"));
    bench.assert_gone();
}

#[tokio::test]
async fn a_descriptor_that_outlives_the_command_holds_nobody_up() {
    let bench = Bench::new();
    let execution = bench.script("exec 3>&-; sleep $0 & exit 4").await;
    assert_eq!(execution.exit_code, Some(4));
    bench.assert_gone();
    let execution = bench.script("sleep $0 3>&3 & exit 5").await;
    assert_eq!(execution.exit_code, Some(5));
    bench.assert_gone();
}
