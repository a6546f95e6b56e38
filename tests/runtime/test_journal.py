"""What was changed is put back exactly."""

from tpumagic.runtime import plan_text
from tpumagic.runtime.journal import Change, Journal
from tpumagic.runtime.plan import Step


def test_everything_is_put_back():
    environ = {"A": "1", "KEPT": "x"}
    journal = Journal(environ)
    assert journal.apply([Step("A", None, ""), Step("B", "2", "")]) == (Change("A", "1", None), Change("B", None, "2"))
    assert environ == {"B": "2", "KEPT": "x"}
    back, left = journal.undo()
    assert environ == {"A": "1", "KEPT": "x"}
    assert plan_text.undone(back, left) == ("B is no longer set, as before.", "A is 1 again.")
    assert journal.undo() == ((), ())


def test_doing_the_same_again_changes_nothing_and_forgets_nothing():
    environ = {"A": "1"}
    journal = Journal(environ)
    journal.apply([Step("A", "2", "")])
    assert journal.apply([Step("A", "2", "")]) == ()
    journal.apply([Step("A", "3", "")])
    assert journal.changes == (Change("A", "1", "3"),)
    journal.undo()
    assert environ == {"A": "1"}


def test_what_somebody_else_has_changed_since_is_left_alone():
    environ = {"A": "1", "B": "1"}
    journal = Journal(environ)
    journal.apply([Step("A", "2", ""), Step("B", "2", "")])
    environ["A"] = "mine"
    back, left = journal.undo()
    assert environ == {"A": "mine", "B": "1"}
    assert plan_text.undone(back, left) == (
        "B is 1 again.",
        "A was left as it is: it has been changed by something else since.",
    )


def test_a_value_written_between_two_set_ups_is_what_comes_back():
    environ = {"A": "1"}
    journal = Journal(environ)
    journal.apply([Step("A", "2", "")])
    environ["A"] = "mine"
    journal.apply([Step("A", "3", "")])
    journal.undo()
    assert environ == {"A": "mine"}


def test_changes_in_words():
    changes = (Change("A", "1", None), Change("B", None, "2"), Change("C", "1", "2"))
    assert plan_text.done(changes) == ("Cleared A, which was 1.", "Set B=2.", "Set C=2 (was 1).")
    assert plan_text.shell_commands(changes) == "For a shell: unset A; export B=2; export C=2"
    assert plan_text.shell_commands(()) is None
