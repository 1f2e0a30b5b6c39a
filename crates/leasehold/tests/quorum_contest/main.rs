//! Contests of many clients for one name: there is always a winner, and no client pays much for it.
//!
//! The model shows that nothing bad happens; this shows that something good happens. Each contest
//! is a simulation that follows from its seed. It checks every grant: one lease at a time, and
//! fences that rise.

mod arena;

use std::time::Duration;

use arena::{Arena, Outcome, Setup};

const SEEDS: u64 = 10;

/// Runs a contest with several seeds, prints its cost, and returns the worst of each number.
fn contest(title: &str, setup: &Setup) -> Outcome {
    let mut worst = Outcome { ended: true, ..Outcome::default() };
    for seed in 1..=SEEDS {
        let one = Arena::run(Setup { seed, ..setup.clone() });
        if !one.ended {
            println!("{title}: seed {seed} does not end");
        }
        worst.ended &= one.ended;
        worst.grants += one.grants;
        worst.commands += one.commands;
        worst.raises += one.raises;
        worst.ways_given += one.ways_given;
        worst.deaths += one.deaths;
        worst.overtakes += one.overtakes;
        worst.took = worst.took.max(one.took);
        worst.longest_gap = worst.longest_gap.max(one.longest_gap);
    }
    let each = |count: usize| count as f64 / worst.grants.max(1) as f64;
    println!(
        "{title}: {} grants, {:.2} commands, {:.3} raises and {:.3} ways given each; \
         free for {:?} at most, {:?} in all",
        worst.grants,
        each(worst.commands),
        each(worst.raises),
        each(worst.ways_given),
        worst.longest_gap,
        worst.took,
    );
    worst
}

/// Checks that every client was granted, with at most `commands_max` commands for each lease.
fn settles(title: &str, setup: &Setup, commands_max: f64) -> Outcome {
    let outcome = contest(title, setup);
    assert!(outcome.ended, "{title}: no end");
    let each = outcome.commands as f64 / outcome.grants as f64;
    assert!(each <= commands_max, "{title}: {each} commands a lease");
    outcome
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn two_hundred_waiters_at_three_nodes_cost_six_commands_each_and_never_stall() {
    let crowd = settles("200 at once", &Setup::default(), 6.1);
    assert!(crowd.longest_gap < 10 * MS, "one split vote at the start, and no other");
    let spread = Setup { spread: 10 * MS, ..Setup::default() };
    assert!(settles("200 within 10 ms", &spread, 6.1).longest_gap < 10 * MS);
}

#[test]
fn a_name_that_changes_hands_all_the_time_is_held_most_of_it() {
    let setup = Setup { clients: 8, leases: 100, hold: MS, ..Setup::default() };
    let outcome = settles("8 clients, held for 1 ms", &setup, 6.1);
    let held = (setup.clients as u32 * setup.leases) * setup.hold;
    assert!(held.as_secs_f64() / outcome.took.as_secs_f64() >= 0.85);
}

#[test]
fn even_numbers_of_nodes_settle_a_split_vote() {
    for nodes in [2, 4, 6] {
        let crowd = Setup { nodes, ..Setup::default() };
        let outcome = settles(&format!("{nodes} nodes"), &crowd, 2.0 * nodes as f64 + 0.1);
        assert!(outcome.longest_gap < 10 * MS);
        let pair = Setup { nodes, clients: 2, leases: 200, ..Setup::default() };
        let outcome = settles(&format!("{nodes} nodes, a pair"), &pair, 2.0 * nodes as f64 + 0.1);
        assert!(outcome.longest_gap < 10 * MS);
    }
}

#[test]
fn dead_nodes_do_not_hold_up_a_live_majority() {
    for (nodes, dead) in [(3, vec![1]), (4, vec![3]), (5, vec![0, 4])] {
        let setup = Setup { nodes, dead: dead.clone(), leases: 3, ..Setup::default() };
        let title = format!("{nodes} nodes, {dead:?} dead");
        let outcome = settles(&title, &setup, 2.0 * nodes as f64 + 2.0);
        assert!(outcome.longest_gap < 20 * MS, "far below the time limit of a node");
    }
}

#[test]
fn slow_networks_cost_hardly_more_commands() {
    let setup =
        Setup { way: 20 * MS, spread: 200 * MS, clients: 50, leases: 3, ..Setup::default() };
    settles("20 to 40 ms a way", &setup, 6.1);
    settles("and clocks apart", &Setup { skew: 200 * MS, ..setup }, 8.0);
}

#[test]
fn clocks_a_second_apart_cost_an_exchange_and_nothing_else() {
    let setup = Setup { skew: 1_000 * MS, ..Setup::default() };
    assert!(settles("clocks 1 s apart", &setup, 8.0).longest_gap < 10 * MS);
}

#[test]
fn lost_bells_are_made_up_for_by_heartbeats() {
    for bells_lost in [5, 50, 100] {
        let setup = Setup { bells_lost, clients: 20, ..Setup::default() };
        let outcome = settles(&format!("{bells_lost} % of the bells lost"), &setup, 15.0);
        assert!(outcome.longest_gap < 2_000 * MS, "within two heartbeats");
    }
}

#[test]
fn claims_that_do_not_join_split_the_vote_and_one_wins() {
    for nodes in [2, 3, 4] {
        let setup = Setup { nodes, join: false, clients: 10, leases: 10, ..Setup::default() };
        let outcome = settles(&format!("trying at {nodes} nodes"), &setup, 30.0);
        assert!(outcome.longest_gap < 300 * MS);
    }
}

#[test]
fn client_that_dies_as_it_is_granted_delays_the_others_by_its_ttl_only() {
    let setup = Setup { dies_every: 10, clients: 50, ..Setup::default() };
    let outcome = settles("every tenth dies", &setup, 6.5);
    assert_eq!(outcome.deaths, 5 * SEEDS as usize);
    assert!(outcome.longest_gap < 11_000 * MS);
}

#[test]
fn nodes_with_orders_of_their_own_would_never_settle() {
    let outcome = contest("own orders", &Setup { own_orders: true, ..Setup::default() });
    assert!(!outcome.ended, "then the common rank would not be needed");
}
