"""What a trainer relies on. Run it with `pytest`."""

from fastapi.testclient import TestClient

from server import app

server = TestClient(app)


def begin(item):
    number = server.post("/create").json()["id"]
    reply = server.post("/reset", json={"id": number, "data_idx": item})
    return number, reply.json()["observation"]


def step(number, action):
    return server.post("/step", json={"id": number, "action": action})


def play(item, moves=8):
    number, seen = begin(item)
    replies = [seen]
    for _ in range(moves):
        reply = step(number, "take 1").json()
        replies.append(reply)
        if reply["done"]:
            break
    assert server.post("/close", json={"id": number}).json() is True
    return replies


def test_the_same_item_is_the_same_game():
    assert play(7) == play(7)
    assert len({begin(item)[1] for item in range(20)}) > 5


def test_a_move_that_is_none_changes_nothing():
    number, seen = begin(3)
    for action in ("take 4", "take", "", "take 1 2", "give 1"):
        reply = step(number, action).json()
        assert reply == {"observation": f"That is no move. {seen}", "reward": 0.0, "done": False}


def test_games_can_be_won_and_lost_and_then_are_over():
    ends = {play(item)[-1]["reward"] for item in range(40)}
    assert ends == {0.0, 1.0}
    number, _ = begin(1)
    while not step(number, "take 1").json()["done"]:
        pass
    assert step(number, "take 1").status_code == 409


def test_a_closed_session_is_gone():
    number, _ = begin(1)
    assert server.post("/close", json={"id": number}).json() is True
    assert server.post("/close", json={"id": number}).json() is False
    assert step(number, "take 1").status_code == 404
