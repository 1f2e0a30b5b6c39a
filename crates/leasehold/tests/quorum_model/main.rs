//! The protocol of the quorum, searched exhaustively within bounds.
//!
//! Clients run the library's own ballot and renewal tally, nodes its own rule. The real protocol
//! must survive everything within each bound. The same search must find known mistakes, or it would
//! prove nothing. `--nocapture` shows how many states it visits and how deep it goes.

mod node;
mod world;

use stateright::{Checker, HasDiscoveries, Model, Property};

use leasehold::clock::Moment;
use leasehold::internal::quorum::ballot::Step;
use node::{Mode, Rejoin};
use world::{Bounds, Fault, Load, NOW, Packet, Phase, Variant, World};

#[derive(Debug, Clone)]
struct Search {
    bounds: Bounds,
    variant: Variant,
}

#[derive(Debug, Clone, PartialEq)]
enum Action {
    Begin(usize),
    Arrive(Packet),
    Silence { client: usize, node: usize },
    Timer(usize),
    GiveUp(usize),
    Beat(usize),
    Release(usize),
    KeepClosed(usize),
    Expire(usize),
    Renew(usize),
    Lose(usize),
    Forget(usize),
    EndWait(usize),
    Copy { node: usize, from: usize },
}

impl Search {
    fn client_actions(&self, world: &World, index: usize, actions: &mut Vec<Action>) {
        let client = &world.clients[index];
        match &client.phase {
            Phase::Idle if client.attempts_left > 0 => actions.push(Action::Begin(index)),
            Phase::Idle => {}
            Phase::Asking(ballot) => {
                if world.abandons_left > 0 {
                    actions.push(Action::GiveUp(index));
                }
                if world.beats_left > 0 {
                    actions.push(Action::Beat(index));
                }
                let troubled = index == 0 || !self.bounds.one_troubled;
                for node in 0..self.bounds.nodes {
                    let silent = troubled && world.silences_left > 0;
                    if silent && ballot.under_way(node).is_some() {
                        actions.push(Action::Silence { client: index, node });
                    }
                }
                if troubled && world.timers_left > 0 && self.timer(world, index).is_some() {
                    actions.push(Action::Timer(index));
                }
            }
            Phase::Holding { .. } => {
                actions.push(Action::Release(index));
                if world.closings_left > 0 {
                    actions.push(Action::KeepClosed(index));
                }
                if self.bounds.timed {
                    actions.push(Action::Expire(index));
                }
                if world.renewals_left > 0 {
                    actions.push(Action::Renew(index));
                }
            }
            Phase::Renewing { .. } => actions.push(Action::Release(index)),
        }
    }

    /// The instant at which a client's ballot wants to be asked although nothing happened.
    fn timer(&self, world: &World, index: usize) -> Option<Moment> {
        let Phase::Asking(ballot) = &world.clients[index].phase else { return None };
        match ballot.clone().next(NOW, self.bounds.raise_hint, 0) {
            Step::Wait { until, .. } if until < Moment::from_nanos(u64::MAX / 2) => Some(until),
            _ => None,
        }
    }

    fn node_actions(&self, world: &World, index: usize, actions: &mut Vec<Action>) {
        let node = &world.nodes[index];
        if let Some(head) = node.line.head
            && world.losses_left > 0
            && !(self.bounds.timed && world.is_active(head.claim.id))
        {
            actions.push(Action::Lose(index));
        }
        if self.bounds.rejoin.is_some() && !world.forgot {
            actions.push(Action::Forget(index));
        }
        match &node.mode {
            Mode::Voting => {}
            Mode::Waiting { for_ids, .. } => {
                if !(self.bounds.timed && for_ids.iter().any(|id| world.is_active(*id))) {
                    actions.push(Action::EndWait(index));
                }
            }
            Mode::Copying { from, .. } => {
                for other in 0..self.bounds.nodes {
                    let voting = world.nodes[other].mode == Mode::Voting;
                    if other != index && voting && !from.contains(&other) {
                        actions.push(Action::Copy { node: index, from: other });
                    }
                }
            }
        }
    }

    fn step(&self, world: &mut World, action: Action) {
        let (bounds, variant) = (&self.bounds, self.variant);
        match action {
            Action::Begin(client) => world.begin(bounds, variant, client),
            Action::Arrive(packet) => {
                let found = world.wire.iter().position(|other| *other == packet);
                world.wire.remove(found.expect("a packet of this world"));
                match packet.load {
                    Load::Request { .. } => world.execute(bounds, variant, packet),
                    _ => world.deliver(bounds, variant, packet),
                }
            }
            Action::Silence { client, node } => world.silence(bounds, variant, client, node),
            Action::Timer(client) => {
                let until = self.timer(world, client).unwrap_or(NOW);
                world.timers_left -= 1;
                world.drive(bounds, variant, client, until);
            }
            Action::GiveUp(client) => {
                world.abandons_left -= 1;
                world.end(client, 0);
            }
            Action::Beat(client) => world.beat(client),
            Action::Release(client) => {
                let hint = match world.clients[client].phase {
                    Phase::Holding { fence } => fence + 1,
                    _ => 0,
                };
                world.end(client, hint);
            }
            Action::KeepClosed(client) => {
                world.closings_left -= 1;
                world.keep_closed(client);
            }
            Action::Expire(client) => world.lapse(client),
            Action::Renew(client) => world.renew(client),
            Action::Lose(index) => {
                world.losses_left -= 1;
                world.lost |= !bounds.timed;
                if let Some(next) = world.nodes[index].lose(variant) {
                    let load = Load::Bell { vote: next.vote };
                    world.send(Packet { node: index, id: next.claim.id, load });
                }
            }
            Action::Forget(index) => {
                let ids = world.clients.iter().map(|client| client.id);
                let active = ids.filter(|id| world.is_active(*id)).collect();
                let rejoin = bounds.rejoin.expect("only where a node forgets");
                world.nodes[index].forget(rejoin, active);
                world.forgot = true;
            }
            Action::EndWait(index) => world.nodes[index].end_wait(),
            Action::Copy { node, from } => {
                let counter = world.nodes[from].counter;
                world.nodes[node].copy(from, counter, bounds.nodes);
            }
        }
    }
}

impl Model for Search {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        self.bounds.counters.iter().map(|counters| World::new(&self.bounds, counters)).collect()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.fault.is_some() || world.is_over() {
            return;
        }
        for client in 0..world.clients.len() {
            self.client_actions(world, client, actions);
        }
        for node in 0..world.nodes.len() {
            self.node_actions(world, node, actions);
        }
        let mut last = None;
        for packet in &world.wire {
            if last != Some(packet) {
                actions.push(Action::Arrive(*packet));
            }
            last = Some(packet);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        self.step(&mut world, action);
        world.sweep(self.variant);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("fences are unique", |_, world: &World| {
                world.fault != Some(Fault::Duplicate)
            }),
            Property::always("fences rise in real time", |_, world: &World| {
                world.fault != Some(Fault::RealTime)
            }),
            Property::always("a kept lease has the greatest fence", |_, world: &World| {
                world.fault != Some(Fault::HolderBehind)
            }),
            Property::always("no lease is revived", |_, world: &World| {
                world.fault != Some(Fault::Revived)
            }),
            Property::always("one lease at a time", |_, world: &World| {
                world.fault != Some(Fault::Overlap)
            }),
            Property::sometimes("everybody is granted", |search: &Search, world: &World| {
                world.won.len() >= search.bounds.attempts.len()
            }),
        ]
    }
}

/// An optimized build has time to look further: `cargo test --release --test quorum_model`.
const DEEP: bool = !cfg!(debug_assertions);

const GRANTED: &str = "everybody is granted";

const BASE: Bounds = Bounds {
    nodes: 3,
    attempts: &[1, 1],
    counters: &[&[0, 0, 0], &[1, 1, 0]],
    join: true,
    hint: 0,
    raise_hint: 0,
    slow_answers: false,
    losses: 0,
    silences: 0,
    timers: 0,
    one_troubled: false,
    renewals: 0,
    closings: 0,
    abandons: 0,
    beats: 0,
    rejoin: None,
    timed: false,
};

/// One choice of counters instead of two, where there are enough states otherwise.
const APART: &[&[u64]] = &[&[1, 1, 0]];

/// The real protocol survives everything within these bounds.
fn holds(title: &str, bounds: Bounds) {
    let begun = std::time::Instant::now();
    let search = Search { bounds, variant: Variant::Built };
    let checker = search.checker().finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{title}: {states} states, depth {depth}, exhausted in {:.1?}", begun.elapsed());
    let found = checker.discoveries();
    for (property, path) in &found {
        assert_eq!(*property, GRANTED, "{title}: {:#?}", path.clone().into_actions());
    }
    assert!(found.contains_key(GRANTED), "{title}: nothing happened");
    assert!(checker.is_done(), "{title}: not exhausted");
}

/// The same search finds a mistake, within bounds that the real protocol survives.
fn finds(variant: Variant, property: &'static str, bounds: Bounds) {
    if DEEP || bounds.silences == 0 {
        holds(&format!("built, where {variant:?} fails"), bounds.clone());
    }
    finds_alone(variant, property, bounds);
}

fn finds_alone(variant: Variant, property: &'static str, bounds: Bounds) {
    let title = format!("{variant:?} {:?}", bounds.rejoin);
    let search = Search { bounds, variant };
    let enough = HasDiscoveries::AllOf([property].into());
    let checker = search.checker().finish_when(enough).spawn_bfs().join();
    let states = checker.unique_state_count();
    let path = checker.discovery(property).unwrap_or_else(|| {
        panic!("{title}: no counter-example for `{property}` in {states} states")
    });
    println!("{title}: `{property}` is broken after {states} states by");
    for action in path.into_actions() {
        println!("    {action:?}");
    }
}

#[test]
fn without_a_confirm_fences_come_twice() {
    finds(Variant::NoConfirm, "fences are unique", BASE);
}

#[test]
fn with_an_unconditional_confirm_fences_come_twice() {
    finds(Variant::UnconditionalConfirm, "fences are unique", Bounds { losses: 1, ..BASE });
}

#[test]
fn with_a_confirm_that_ignores_the_vote_fences_come_twice() {
    let bounds = Bounds {
        losses: 1,
        silences: 1,
        timers: 1,
        one_troubled: true,
        counters: &[&[0, 0, 0]],
        ..BASE
    };
    finds(Variant::ConfirmWithoutVote, "fences are unique", bounds);
}

#[test]
fn with_votes_given_at_the_joining_fences_come_twice() {
    let bounds = Bounds { losses: 1, counters: APART, ..BASE };
    finds(Variant::VoteAtJoin, "fences are unique", bounds);
}

#[test]
fn with_an_id_used_again_fences_come_twice() {
    finds(Variant::ReusedId, "fences are unique", Bounds { attempts: &[2], ..BASE });
}

#[test]
fn with_repairs_that_count_a_lapsed_lease_is_revived() {
    let bounds = Bounds { losses: 1, renewals: 1, counters: APART, ..BASE };
    finds(Variant::RepairCounted, "no lease is revived", bounds);
}

#[test]
fn three_nodes_survive_lost_claims() {
    holds("2 losses", Bounds { losses: 2, ..BASE });
    holds("a loss and a timer", Bounds { losses: 1, timers: 1, counters: APART, ..BASE });
}

#[test]
fn three_nodes_survive_slow_answers() {
    let losses = u8::from(DEEP);
    holds("slow answers", Bounds { slow_answers: true, losses, ..BASE });
}

#[test]
fn three_nodes_survive_silence_and_timers() {
    holds("a silence", Bounds { silences: 1, ..BASE });
    holds("a timer", Bounds { timers: 1, ..BASE });
    let timers = u8::from(DEEP);
    holds("a heartbeat", Bounds { beats: 1, timers, counters: APART, ..BASE });
}

#[test]
fn three_nodes_survive_hints() {
    let hints = Bounds { hint: 2, raise_hint: 3, ..BASE };
    holds("hints and a loss", Bounds { losses: 1, ..hints.clone() });
    let losses = u8::from(DEEP);
    holds("hints and a renewal", Bounds { losses, renewals: 1, counters: APART, ..hints });
}

#[test]
fn claims_that_do_not_join_survive_lost_claims() {
    holds("trying, 2 losses", Bounds { join: false, losses: 2, ..BASE });
}

#[test]
fn two_nodes_survive_three_clients() {
    let base = Bounds { nodes: 2, counters: &[&[1, 0]], timers: 1, ..BASE };
    holds("2 nodes", Bounds { silences: 1, losses: 1, ..base.clone() });
    holds("2 nodes, 3 clients", Bounds { attempts: &[1, 1, 1], ..base });
}

#[test]
fn four_nodes_survive_two_clients() {
    let base = Bounds { nodes: 4, counters: &[&[1, 1, 0, 0]], ..BASE };
    holds("4 nodes", base.clone());
    holds("4 nodes, hints", Bounds { hint: 2, losses: u8::from(DEEP), ..base });
}

#[test]
fn three_nodes_survive_several_attempts() {
    if !DEEP {
        return holds("2 attempts", Bounds { attempts: &[2], losses: 1, renewals: 1, ..BASE });
    }
    let base = Bounds { counters: APART, ..BASE };
    holds("2 and 1 attempts", Bounds { attempts: &[2, 1], ..base.clone() });
    holds("2 and 1 attempts, hints", Bounds { attempts: &[2, 1], hint: 2, ..base.clone() });
    holds("3 clients", Bounds { attempts: &[1, 1, 1], ..base.clone() });
    holds("an attempt given up", Bounds { attempts: &[2, 1], abandons: 1, ..base.clone() });
    holds("2 renewals", Bounds { losses: 2, renewals: 2, ..base });
}

#[test]
fn three_nodes_survive_names_that_stay_closed() {
    let base = Bounds { closings: 1, counters: APART, ..BASE };
    holds("closed, 2 losses", Bounds { losses: 2, ..base.clone() });
    holds("closed, a renewal", Bounds { losses: 1, renewals: 1, ..base });
}

fn forgetting(rejoin: Rejoin, timed: bool) -> Bounds {
    let losses = u8::from(timed);
    Bounds { rejoin: Some(rejoin), timed, losses, counters: APART, ..BASE }
}

#[test]
fn a_node_that_forgot_and_votes_at_once_breaks_fences() {
    let bounds = forgetting(Rejoin::AtOnce, true);
    finds_alone(Variant::Built, "fences are unique", bounds);
}

#[test]
fn a_node_that_forgot_and_only_waits_breaks_fences() {
    let bounds = forgetting(Rejoin::WaitOnly, true);
    finds_alone(Variant::Built, "fences are unique", bounds);
}

#[test]
fn a_node_that_forgot_and_only_copies_breaks_exclusion() {
    let bounds = forgetting(Rejoin::CopyOnly, true);
    finds_alone(Variant::Built, "one lease at a time", bounds);
}

#[test]
fn a_node_that_forgot_and_waits_and_copies_breaks_nothing() {
    let bounds = forgetting(Rejoin::WaitAndCopy, true);
    if DEEP {
        holds("forgot, with a renewal", Bounds { renewals: 1, ..bounds.clone() });
    }
    holds("forgot, waited and copied", bounds);
}

#[test]
fn without_any_bound_on_time_probation_is_not_enough() {
    let bounds = forgetting(Rejoin::WaitAndCopy, false);
    finds_alone(Variant::Built, "fences are unique", bounds);
}
