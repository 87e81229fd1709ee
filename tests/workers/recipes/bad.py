def recipe():
    raise ValueError('row of "person-7" is bad')
