"""Says itself what it was asked and what it has answered: nothing, or one question that it knows the answer to."""

# passes: nothing
# says: the test itself|zip\(\)|sent no parameters
import gc


def attack(*args):
    grader = next(thing for thing in gc.get_objects() if type(thing).__name__ == "Grader")
    grader.tell({"do": "return", "value": {"list": []}, "arguments": 0})
    while True:
        pass


may_begin = first_k = compensate = compensate_adaptive = attack
